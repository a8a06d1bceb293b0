"""The step stream: what the scheduler put into each step, drawn live on a canvas."""

from collections.abc import Callable
from functools import cache
from importlib import resources

from streamlit.components.v2.types import ComponentRenderer

from vllm_obs.dashboard import url_state
from vllm_obs.dashboard.canvas.component import COLOURS, canvas_component
from vllm_obs.dashboard.palette import (
    BLOCK_COLOURS,
    LEVEL_COLOURS,
    PHASE_COLOURS,
    REQUEST_COLOURS,
    STAGE_COLOURS,
    TOKEN_COLOURS,
)
from vllm_obs.dashboard.scheduler_words import LIMIT_WORDS, REASON_WORDS

KEY = "step-stream"
PARTS = ("step_ring", "step_paint", "step_words", "step_frame", "step_view", "step_open", "step_moves")


def _swatch(style: str, words: str) -> str:
    return f'<span><i style="{style}"></i>{words}</span>'


def _hatched(colour: str) -> str:
    """The style of what has not ended."""
    pale = f"color-mix(in srgb, {colour} 16%, var(--st-background-color))"
    return f"background: repeating-linear-gradient(135deg, {colour} 0 1px, {pale} 1px 4px)"


def _legend() -> str:
    """The fixed colours, in words."""
    hue, other, page = REQUEST_COLOURS[0], REQUEST_COLOURS[1], "var(--st-background-color)"
    stripes = f"repeating-linear-gradient(135deg, {hue} 0 3px, {TOKEN_COLOURS['recompute']} 3px 6px)"
    hatch = f"repeating-linear-gradient(135deg, {hue} 0 1px, {page} 1px 4px)"
    light = f"color-mix(in srgb, {hue} 58%, {page})"
    still, open_ = (_hatched(colour) for colour in (LEVEL_COLOURS["bad"], PHASE_COLOURS["unknown"]))
    triangle = "clip-path: polygon(0 0, 100% 0, 50% 100%)"
    batch = [
        _swatch(f"background: linear-gradient(90deg, {hue} 50%, {other} 50%)", "prefill, a colour a request"),
        _swatch(f"background: {light}", "decode"),
        _swatch(f"background: {stripes}", "recompute"),
        _swatch(f"background: {hatch}", "found in the prefix cache"),
        _swatch(f"background: {STAGE_COLOURS['preempted']}; {triangle}", "preemption"),
        _swatch(f"background: {LEVEL_COLOURS['bad']}", "failed"),
        _swatch(still, "stands still"),
        _swatch(open_, "under way for over 1 s"),
        _swatch(f"background: {page}; border: 1px solid var(--st-border-color)", "idle"),
    ]
    phases = [_swatch(f"background: {colour}", name) for name, colour in PHASE_COLOURS.items()]
    levels = [
        _swatch(f"background: {STAGE_COLOURS['decode']}", "running, active blocks"),
        _swatch(f"background: {STAGE_COLOURS['queue']}", "waiting"),
        _swatch(f"background: {BLOCK_COLOURS['cached']}", "cached blocks"),
        _swatch(f"background: {BLOCK_COLOURS['free']}", "free blocks"),
    ]
    lines = [("Batch", batch), ("Time", phases), ("Levels", levels)]
    return "".join(f"<span><b>{name}</b></span>{''.join(swatches)}" for name, swatches in lines)


HTML = f"""
<div class="canvas-box">
  <div class="bar" role="toolbar" aria-label="Step stream">
    <button class="lead" data-do="pause" title="Space">Pause</button>
    <span class="group">
      <button data-do="older" aria-label="Step before" title="Arrow left">‹</button>
      <button data-do="newer" aria-label="Step after" title="Arrow right">›</button>
    </span>
    <span class="group" role="group" aria-label="Columns stand by">
      <button data-axis="time" title="A column is as wide as its step took; white is idle">by time</button>
      <button data-axis="step" title="All columns are equally wide">by step</button>
    </span>
    <span class="group" role="group" aria-label="Height of the batch">
      <span class="name">height</span>
      <button data-scale="root" title="Square root, so that decodes show beside long prompts">root</button>
      <button data-scale="linear" title="Twice the tokens, twice the height, up to the budget">linear</button>
      <button data-scale="fit" title="Linear, up to the fullest step in view">fit</button>
    </span>
    <span class="group" role="group" aria-label="Zoom">
      <button data-do="out" aria-label="Show more" title="Minus">−</button>
      <span class="span"></span>
      <button data-do="in" aria-label="Show less" title="Plus">+</button>
    </span>
    <button class="chip" data-do="unfollow" title="Escape" hidden></button>
    <span class="said"></span>
    <span class="canvas-state" role="status">connecting</span>
  </div>
  <canvas class="picture" tabindex="0" role="application" aria-label="Step stream"></canvas>
  <canvas class="map" aria-hidden="true" title="All kept steps; drag to look back"></canvas>
  <div class="canvas-tip"></div>
  <div class="legend">{_legend()}</div>
  <div class="keys">Click a step to pause at it, a request's cell to follow it (Shift: without a pause). Drag to
    look back. Keys: space, arrows, Home, End, + and −, Escape. The wheel zooms after a click, or with Ctrl.</div>
</div>
"""


def step_stream(engine: str, step: int | None, request: str, on_pick: Callable[[], None]) -> None:
    """Mount it. `on_pick` is called when a step or a request was picked: `session_state[KEY].pick`."""
    data = {
        "server": url_state.server(),
        "engine": engine,
        "step": step,
        "request": request,
        "colours": COLOURS,
        "words": {"reason": REASON_WORDS, "limit": LIMIT_WORDS},
    }
    _component()(key=KEY, data=data, on_pick_change=on_pick)


@cache
def _component() -> ComponentRenderer:
    css = resources.files("vllm_obs.dashboard.canvas").joinpath("step_stream.css").read_text(encoding="utf-8")
    return canvas_component("step_stream", HTML, css, PARTS)

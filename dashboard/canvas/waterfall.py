"""The waterfall of a request: its sequences as bars of stages on one time axis, and the steps below it."""

from collections.abc import Callable
from functools import cache
from typing import Any

from streamlit.components.v2.types import ComponentRenderer

from vllm_obs.dashboard.canvas.component import COLOURS, canvas_component

KEY = "waterfall"
PARTS = ("waterfall_words", "waterfall_paint", "waterfall_moves")

CSS = """
.bar { display: flex; flex-wrap: wrap; align-items: center; gap: 8px; min-height: 28px; margin-bottom: 4px; }
.bar b { font-size: 13px; }
.bar button { font: inherit; color: inherit; cursor: pointer; padding: 2px 9px; border-radius: 6px;
  background: var(--st-background-color); border: 1px solid var(--st-border-color); }
.bar button:hover:enabled { border-color: var(--st-primary-color); }
.bar button:disabled { opacity: .45; cursor: default; }
.bar .said { margin-left: auto; opacity: .75; font-variant-numeric: tabular-nums; }
canvas { touch-action: pan-y; font-variant-numeric: tabular-nums; }
canvas.picture { cursor: default; height: 244px; }
canvas.strip { height: 58px; cursor: pointer; }
canvas:focus-visible { outline: 2px solid var(--st-primary-color); }
.title { margin: 6px 0 2px; opacity: .75; font-variant-numeric: tabular-nums; }
.legend { display: flex; flex-wrap: wrap; gap: 3px 14px; margin-top: 6px; }
.legend span { display: inline-flex; align-items: center; gap: 5px; white-space: nowrap; }
.legend i { width: 13px; height: 13px; border-radius: 2px; display: inline-block; }
.keys { opacity: .7; margin-top: 5px; }
"""

_WAIT = COLOURS["stage"]["queue"]
_HATCH = f"repeating-linear-gradient(135deg, {_WAIT} 0 3px, color-mix(in srgb, {_WAIT} 45%, transparent) 3px 6px)"

HTML = f"""
<div class="canvas-box">
  <div class="bar" role="toolbar" aria-label="Waterfall">
    <b>Waterfall</b>
    <button data-do="out" aria-label="Show more" title="Minus">−</button>
    <button data-do="whole" title="0">whole</button>
    <button data-do="in" aria-label="Show less" title="Plus">+</button>
    <span class="said" role="status"></span>
  </div>
  <canvas class="picture" tabindex="0" role="application" aria-label="Waterfall of stages"></canvas>
  <div class="title"></div>
  <canvas class="strip" tabindex="0" role="application" aria-label="Tokens in each step"></canvas>
  <div class="canvas-tip"></div>
  <div class="legend">
    <span><i style="background: {_HATCH}"></i>hatched: it waited, for the reason written on it</span>
    <span><i style="background: {COLOURS["token"]["prefill"]}"></i>prefill</span>
    <span><i style="background: {COLOURS["token"]["decode"]}"></i>decode</span>
    <span><i style="background: {COLOURS["token"]["recompute"]}"></i>recompute</span>
  </div>
  <div class="keys">Arrows go from stage to stage, + and − zoom, 0 shows the whole, Escape leaves. The wheel zooms
    after a click, or with Ctrl; drag to move. A click on a step (or Enter) opens it on the Scheduler page.</div>
</div>
"""


def waterfall(data: dict[str, Any], on_pick: Callable[[], None]) -> None:
    """Mount it. `on_pick` is called when a step or a sequence was picked (`pick`, for one run only)."""
    _component()(key=KEY, data={**data, "colours": COLOURS}, on_pick_change=on_pick)


@cache
def _component() -> ComponentRenderer:
    return canvas_component("waterfall", HTML, CSS, PARTS)

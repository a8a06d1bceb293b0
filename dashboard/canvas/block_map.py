"""The block map: every KV block as a cell on a canvas, live or as it was after a step."""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from streamlit.components.v2.types import ComponentRenderer

from vllm_obs.dashboard import url_state
from vllm_obs.dashboard.canvas.component import COLOURS, canvas_component
from vllm_obs.dashboard.palette import BLOCK_COLOURS, REQUEST_COLOURS

KEY = "block-map"
PARTS = ("block_store", "block_ink", "block_plan", "block_paint", "block_strip", "block_words", "block_view",
         "block_moves")  # fmt: skip
MODES = {"state": "state", "owner": "owner", "refs": "references", "age": "age"}
"""How the blocks are coloured → word on the button."""

CSS = """
.bar { display: flex; flex-wrap: wrap; align-items: center; gap: 8px; min-height: 30px; margin-bottom: 8px; }
.bar button { font: inherit; color: inherit; cursor: pointer; padding: 3px 9px; border-radius: 6px;
  background: var(--st-background-color); border: 1px solid var(--st-border-color); }
.bar button:hover:enabled { border-color: var(--st-primary-color); }
.bar button:disabled { opacity: .45; cursor: default; }
.bar button[aria-pressed="true"] { background: var(--st-primary-color); border-color: var(--st-primary-color);
  color: #fff; }
.bar .group { display: inline-flex; align-items: center; }
.bar .group button { border-radius: 0; margin-left: -1px; }
.bar .group button:first-of-type { border-radius: 6px 0 0 6px; margin-left: 0; }
.bar .group button:last-of-type { border-radius: 0 6px 6px 0; }
.bar .lead { min-width: 66px; font-weight: 600; }
.bar .name { opacity: .72; margin-right: 6px; }
.bar .chip { border-radius: 12px; max-width: 260px; overflow: hidden; text-overflow: ellipsis;
  white-space: nowrap; }
.bar .chip[hidden] { display: none; }
.bar .end { margin-left: auto; }
.bar .canvas-state { position: static; }
.canvas-state[data-level="good"] { background: #2f9e6e; color: #fff; border-color: #2f9e6e; }
canvas.picture { cursor: crosshair; height: 400px; touch-action: pan-y; }
canvas.picture:focus-visible { outline: 2px solid var(--st-primary-color); }
.scrub { display: flex; align-items: center; gap: 10px; margin-top: 6px; font-variant-numeric: tabular-nums; }
.scrub input { flex: 1; accent-color: var(--st-primary-color); min-width: 120px; }
.scrub .at { min-width: 120px; font-weight: 600; }
.scrub .range { min-width: 190px; text-align: right; opacity: .72; }
.legend { display: flex; flex-wrap: wrap; gap: 3px 14px; margin-top: 6px; min-height: 20px; }
.legend > span { display: inline-flex; flex-wrap: wrap; gap: 3px 14px; }
.legend > span[hidden] { display: none; }
.legend span span { display: inline-flex; align-items: center; gap: 5px; white-space: nowrap; }
.legend i { width: 13px; height: 13px; border-radius: 2px; display: inline-block; }
.table { margin-top: 8px; }
.table[hidden] { display: none; }
.said { min-height: 17px; margin-bottom: 5px; overflow: hidden; white-space: nowrap; text-overflow: ellipsis;
  font-variant-numeric: tabular-nums; }
canvas.strip { height: 58px; }
.keys { opacity: .72; margin-top: 5px; }
"""


class Shown(NamedTuple):
    """What the map is to show: `step` None is live, an empty `request` follows nobody."""

    engine: str
    step: int | None
    request: str
    mode: str
    block_size: int
    is_live: bool


def _swatch(style: str, words: str) -> str:
    return f'<span><i style="{style}"></i>{words}</span>'


def _legend() -> str:
    """The fixed colours of each way of colouring, in words."""
    page = "var(--st-background-color)"
    pale = f"background: color-mix(in srgb, {BLOCK_COLOURS['cached']} 34%, {page})"
    empty = f"background: color-mix(in srgb, #868e96 12%, {page})"
    first, second, third = REQUEST_COLOURS[:3]
    owners = f"background: linear-gradient(90deg, {first} 33%, {second} 33% 67%, {third} 67%)"
    modes = {
        "state": [
            _swatch(f"background: {BLOCK_COLOURS['active']}", "active: a request holds it"),
            _swatch(f"background: color-mix(in srgb, {BLOCK_COLOURS['cached']} 72%, {page})",
                    "cached: nobody holds it, its content can be found again"),
            _swatch("background: #868e9633", "free: empty"),
        ],
        "owner": [
            _swatch(owners, "active: each request its own colour, as on the Scheduler page"),
            _swatch(pale, "cached"),
            _swatch(empty, "free"),
        ],
        "refs": [
            _swatch("background: #7db4f5", "1 reference"),
            _swatch("background: #3b82f6", "2"),
            _swatch("background: #7048d8", "3 or 4"),
            _swatch("background: #c2255c", "5 to 8"),
            _swatch("background: #8a1538", "more"),
            _swatch(pale, "cached"),
            _swatch(empty, "free"),
        ],
        "age": [
            _swatch("background: #f08c00", "changed in the newest step"),
            _swatch("background: #6f9f6a", "64 steps ago"),
            _swatch("background: #868e96", "4096 and more"),
            _swatch(empty, "not in the steps that are kept"),
        ],
    }  # fmt: skip
    flashes = [
        _swatch("background: var(--st-text-color)", "flash: just taken"),
        _swatch(f"background: {page}; border: 1px solid var(--st-border-color)", "given back"),
        _swatch("background: #ffb000", "shared"),
    ]
    shown = "".join(f'<span data-legend="{mode}" hidden>{"".join(each)}</span>' for mode, each in modes.items())
    return f"{shown}<span>{''.join(flashes)}</span>"


def _mode_buttons() -> str:
    return "".join(
        f'<button data-mode="{mode}" title="Key {place}">{word}</button>'
        for place, (mode, word) in enumerate(MODES.items(), 1)
    )


HTML = f"""
<div class="canvas-box">
  <div class="bar" role="toolbar" aria-label="Block map">
    <button class="lead" data-do="pause" title="Space">Pause</button>
    <span class="group">
      <button data-do="older" aria-label="Step before" title="Arrow left">‹</button>
      <button data-do="newer" aria-label="Step after" title="Arrow right">›</button>
    </span>
    <span class="group" role="group" aria-label="Coloured by">
      <span class="name">colour by</span>{_mode_buttons()}
    </span>
    <span class="group" role="group" aria-label="Zoom">
      <button data-do="out" aria-label="Smaller" title="Minus">−</button>
      <button data-do="whole" title="0">whole map</button>
      <button data-do="in" aria-label="Larger" title="Plus">+</button>
    </span>
    <button class="chip" data-do="unfollow" title="Escape" hidden></button>
    <span class="canvas-state end" role="status">connecting</span>
  </div>
  <canvas class="picture" tabindex="0" role="application" aria-label="Map of KV blocks"></canvas>
  <div class="scrub">
    <span class="at"></span>
    <input class="scrubber" type="range" min="0" max="0" step="1" aria-label="Step">
    <span class="range"></span>
  </div>
  <div class="legend">{_legend()}</div>
  <div class="table" hidden>
    <div class="said"></div>
    <canvas class="strip" role="img" aria-label="Block table"></canvas>
  </div>
  <div class="canvas-tip"></div>
  <div class="keys">Click a block to follow its holder. Double-click zooms; the wheel does after a click, or with
    Ctrl. Drag to move. Keys: space, arrows, Home, End, + and −, 1 to 4, Escape; Shift with arrows goes from block
    to block.</div>
</div>
"""


def block_map(shown: Shown, on_pick: Callable[[], None]) -> None:
    """Mount it. `on_pick` is called when a step, a request or a way of colouring was picked: `pick`."""
    data = {**shown._asdict(), "server": url_state.server(), "colours": COLOURS}
    _component()(key=KEY, data=data, on_pick_change=on_pick)


@cache
def _component() -> ComponentRenderer:
    return canvas_component("block_map", HTML, CSS, PARTS)

"""The flame graph of a sampling profile, drawn by the browser from the profile's own file."""

from functools import cache

from streamlit.components.v2.types import ComponentRenderer

from vllm_obs.dashboard.canvas.component import COLOURS, canvas_component

HTML = """
<div class="canvas-box">
  <div class="bar" role="toolbar" aria-label="Flame graph">
    <button data-do="whole" title="Esc">Whole profile</button>
    <label>Find <input type="search" data-find placeholder="function or file" maxlength="64"></label>
    <span class="found" aria-live="polite"></span>
  </div>
  <canvas tabindex="0" role="application" aria-label="Flame graph"></canvas>
  <div class="canvas-tip"></div>
</div>"""
CSS = """
.bar { display: flex; gap: 10px; align-items: center; margin-bottom: 6px; }
.bar button, .bar input { font: inherit; color: inherit; background: var(--st-secondary-background-color);
  border: 1px solid var(--st-border-color); border-radius: 5px; padding: 3px 9px; }
.found { opacity: .75; }
"""


def flame_graph(path: str) -> None:
    """Draw the collapsed stacks that the Observer serves at `path` (under /inspect/)."""
    _component()(data={"path": path, "colours": COLOURS}, key="flame-graph", height="content")


@cache
def _component() -> ComponentRenderer:
    return canvas_component("flame_graph", HTML, CSS)

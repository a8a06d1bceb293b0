"""The flame graph of a sampling profile, drawn by the browser from the profile's own file."""

from functools import cache

from streamlit.components.v2.types import ComponentRenderer

from vllm_obs.dashboard.canvas.component import COLOURS, canvas_component

HTML = """
<div class="canvas-box">
  <div class="bar" role="toolbar" aria-label="Flame graph">
    <span class="what" role="group" aria-label="Which samples">
      <button data-what="ran" title="By CPU time: what waited is left out">What ran</button><button
        data-what="all" title="By samples: a thread that waits is sampled like one that works">All samples</button>
    </span>
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
.bar button[aria-pressed=true] { background: var(--st-primary-color); border-color: var(--st-primary-color);
  color: #fff; }
.what button:first-child { border-radius: 5px 0 0 5px; }
.what button:last-child { border-radius: 0 5px 5px 0; margin-left: -1px; }
.what[hidden] { display: none; }
.found { opacity: .75; }
"""


def flame_graph(all_path: str, ran_path: str = "") -> None:
    """Draw the collapsed stacks that the Observer serves at these paths (under /inspect/): samples, and CPU µs.

    What ran is drawn first; without a `ran_path` there is nothing to choose.
    """
    data = {"paths": {"all": all_path, "ran": ran_path}, "colours": COLOURS}
    _component()(data=data, key="flame-graph", height="content")


@cache
def _component() -> ComponentRenderer:
    return canvas_component("flame_graph", HTML, CSS)

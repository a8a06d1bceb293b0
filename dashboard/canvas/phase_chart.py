"""The phases of the last steps as stacked columns, from figures that the page passes on."""

from functools import cache
from typing import Any

from streamlit.components.v2.types import ComponentRenderer

from vllm_obs.dashboard.canvas.component import COLOURS, canvas_component

HTML = """
<div class="canvas-box">
  <canvas tabindex="0" role="img" aria-label="Phases of the last steps"></canvas>
  <div class="canvas-tip"></div>
</div>"""


def phase_chart(steps: list[int], phases: dict[str, list[float]], key: str) -> None:
    """Draw milliseconds by phase and step, parallel to `steps`; 0 where a step has no such phase."""
    data: dict[str, Any] = {"steps": steps, "phases": phases, "colours": COLOURS}
    _component()(data=data, key=key, height="content")


@cache
def _component() -> ComponentRenderer:
    return canvas_component("phase_chart", HTML)

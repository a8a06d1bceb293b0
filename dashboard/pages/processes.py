"""The processes page: who runs and what lies between, stacks, telemetry's health, the start, memory, and GPUs."""

import time

import streamlit as st

from vllm_obs.dashboard import url_state
from vllm_obs.dashboard.device_table import device_panel
from vllm_obs.dashboard.frame import note_trouble, panel, teach
from vllm_obs.dashboard.memory_panel import memory_panel
from vllm_obs.dashboard.process_health import health_panel
from vllm_obs.dashboard.process_panel import tree_panel
from vllm_obs.dashboard.process_stacks import stacks
from vllm_obs.dashboard.source import current
from vllm_obs.dashboard.startup_panel import startup_panel

HEALTH_SECONDS = 2.0
MEMORY_SECONDS = 5.0
"""A look at all processes' memory takes the Observer some time."""
STARTUP_SECONDS = 2.0


def render() -> None:
    """Draw the page."""
    reading = current().get("/inspect/processes")
    if not reading.is_there:
        note_trouble(reading)
        teach(
            "No server is known yet",
            "Start one with `vllm-obs serve`, or `vllm-obs demo`. Its processes stand here as a tree: "
            "what each does now, what it takes, and how long what passes between them is on its way.",
        )
        return
    if (step := url_state.paused_step()) is not None:
        at = time.strftime("%H:%M:%S")
        st.caption(
            f"The page is held at step {step}. What stands here is not of that step: it is as it was at {at}, "
            "and is looked at again when you follow live."
        )
    panel(tree_panel)
    st.fragment(stacks)()
    st.markdown("#### Telemetry")
    panel(health_panel, HEALTH_SECONDS)
    st.markdown("#### Start")
    panel(startup_panel, STARTUP_SECONDS)
    st.markdown("#### Memory")
    panel(memory_panel, MEMORY_SECONDS)
    panel(device_panel)

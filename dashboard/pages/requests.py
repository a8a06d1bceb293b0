"""The requests page: a list to filter, or one request told whole: where its time went, and beside whom it ran."""

import streamlit as st

from vllm_obs.dashboard import url_state
from vllm_obs.dashboard.frame import note_trouble, panel, teach
from vllm_obs.dashboard.request_filters import filter_inputs
from vllm_obs.dashboard.request_list import list_panel
from vllm_obs.dashboard.request_view import compare_input, is_changing, request_panel
from vllm_obs.dashboard.source import current


def render() -> None:
    """Draw the page."""
    reading = current().get("/inspect/state")
    if not reading.is_there:
        note_trouble(reading)
        teach(
            "There is no server whose requests could be shown.",
            "Start one with `vllm-obs serve`, or one with load of its own with `vllm-obs demo`.",
        )
        return
    if name := url_state.text("request"):
        compare_input()
        if is_changing(name):
            panel(request_panel)
        else:
            st.fragment(request_panel)()
        return
    if (step := url_state.paused_step()) is not None:
        st.caption(f"This list is as of now, not of step {step}; who ran in that step is on the Scheduler page.")
    filter_inputs()
    panel(list_panel)

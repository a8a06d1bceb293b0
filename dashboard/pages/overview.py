"""The overview: the verdict first, then rates, latencies, where the engine's time goes, and the objectives."""

import streamlit as st

from vllm_obs.dashboard import url_state
from vllm_obs.dashboard.figures import seconds
from vllm_obs.dashboard.frame import note_trouble, panel
from vllm_obs.dashboard.overview_engines import engine_panel
from vllm_obs.dashboard.overview_figures import latency_panel, rate_panel
from vllm_obs.dashboard.overview_slo import objectives_panel, targets_input
from vllm_obs.dashboard.server_table import server_table
from vllm_obs.dashboard.source import current, servers
from vllm_obs.dashboard.verdict_card import verdict_card

VERDICT_WINDOWS = ("10s", "1m", "5m")


def render() -> None:
    """Draw the page."""
    if len(servers()) > 1:
        panel(server_table)
    window = _window_choice()
    panel(lambda: _verdict(window))
    panel(rate_panel)
    panel(lambda: latency_panel(window))
    panel(engine_panel)
    targets = targets_input()
    panel(lambda: objectives_panel(targets))


def _window_choice() -> str:
    before = url_state.window()
    window = st.segmented_control(
        "Verdict and latencies of the last",
        url_state.WINDOWS,
        default=before,
        required=True,
        format_func={"10s": "10 s", "1m": "1 min", "5m": "5 min", "run": "whole run"}.__getitem__,
        key="window",
        label_visibility="collapsed",
    )
    url_state.put(window=window)
    return window or before


def _verdict(window: str) -> None:
    shown = window if window in VERDICT_WINDOWS else "5m"
    reading = current().get("/inspect/verdict", window=shown)
    note_trouble(reading)
    with st.container(border=True, key="verdict", height=350):
        if reading.is_there:
            verdict_card(reading.content)
        else:
            st.markdown("There is no verdict.")
    _health_words()


def _health_words() -> None:
    """Health in words: what the run says of itself, and the last incident."""
    reading = current().get("/inspect/state")
    if not reading.is_there:
        st.caption("–")
        return
    state = reading.content
    loops = [seconds(loop["max_lag_seconds"]) for loop in state["api_servers"]]
    whose = "The API server's loop was" if len(loops) == 1 else "The API servers' loops were"
    lag = f" {whose} late by {', '.join(loops)} at most." if loops else ""
    st.text(f"{state['health']['says']}{lag}")

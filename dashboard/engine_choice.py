"""Which of several engines a page looks at; the address says it."""

import streamlit as st

from vllm_obs.dashboard import url_state
from vllm_obs.dashboard.frame import escape


def engine_selector(engines: list[str], key: str) -> None:
    """Draw the choice where there is one; what was paused at was another engine's step."""
    if url_state.engine() not in engines:
        url_state.put(engine=engines[0], step=None)
    if len(engines) < 2:
        return

    def choose() -> None:
        if chosen := st.session_state.get(key):
            url_state.put(engine=chosen, step=None)

    # A link may have led here since: the address says which, not what was chosen before.
    st.session_state[key] = url_state.engine()
    st.segmented_control("Engine", engines, key=key, on_change=choose, format_func=escape)

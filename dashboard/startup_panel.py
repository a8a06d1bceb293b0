"""The start of the run: the sentence first, then the picture, and the critical path as a table."""

from typing import Any

import streamlit as st

from vllm_obs.dashboard.figures import NOTHING, seconds, share
from vllm_obs.dashboard.frame import said
from vllm_obs.dashboard.process_facts import name_of
from vllm_obs.dashboard.source import current
from vllm_obs.dashboard.startup_picture import key_html, picture

Row = dict[str, Any]


def startup_panel() -> None:
    """Draw it."""
    reading = current().get("/inspect/startup")
    view: Row = reading.content if reading.is_there else {}
    st.markdown(f"**{said(view['says'])}**" if view else NOTHING)
    st.html(picture(view) if view.get("processes") else "<div>No process of this run has been heard of.</div>")
    st.html(key_html())
    st.caption(_account(view))
    with st.expander("The critical path, step by step"):
        _path_table(view["run"]["critical_path"] if view else [])


def _account(view: Row) -> str:
    accounted = view["run"]["accounted"] if view else None
    if accounted is None:
        return NOTHING
    told = f"{100 * accounted:.2f} % of the time to ready is accounted for."
    return said(" ".join([told, *view["hints"]]))


def _path_table(path: list[Row]) -> None:
    st.dataframe(
        {
            "Process": [name_of(segment["role"]) for segment in path],
            "Phase": [segment["phase"] for segment in path],
            "Took": [seconds(segment["seconds"]) for segment in path],
            "Of the start": [share(segment["share"]) for segment in path],
        },
        hide_index=True,
        height=320,
        key="critical-path",
        placeholder=NOTHING,
    )

"""The process tree as it is now, with a sentence before it."""

from typing import Any

import streamlit as st

from vllm_obs.dashboard.frame import escape, note_trouble
from vllm_obs.dashboard.process_edges import NO_EDGES
from vllm_obs.dashboard.process_facts import hosts_of, tree_of
from vllm_obs.dashboard.process_tree import alarm, ended_html, tree_html
from vllm_obs.dashboard.source import Reading, current


def tree_panel() -> None:
    """Draw it."""
    reading, edges = current().get("/inspect/processes"), current().get("/inspect/edges")
    note_trouble(reading)
    content: dict[str, Any] = reading.content if reading.is_there else {"processes": []}
    stalls, tree = _stalls(current().get("/inspect/state")), tree_of(content["processes"])
    sentence, ill = alarm(tree, stalls)
    told = " ".join([f"**{sentence}**", *(f":red[{escape(each)}]" for each in ill)])
    st.markdown(told)
    if hosts := hosts_of(content["processes"]):
        st.caption(f"On {len(hosts) + 1} hosts: this one and {escape(', '.join(hosts))}.")
    limit = (content.get("memory") or {}).get("limit_bytes")
    st.html(tree_html(tree, stalls, edges.content if edges.is_there else NO_EDGES, limit))
    st.html(ended_html(tree))


def _stalls(state: Reading) -> list[dict[str, Any]]:
    return list(state.content["stalls"]["current"]) if state.is_there else []

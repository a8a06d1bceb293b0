"""The Python stacks of processes, taken when somebody asks; they stay as they were taken."""

import time
from typing import Any

import streamlit as st

from vllm_obs.dashboard.figures import NOTHING
from vllm_obs.dashboard.frame import escape, said
from vllm_obs.dashboard.process_facts import ENDED, name_of
from vllm_obs.dashboard.source import current

TAKEN_KEY = "stacks-taken"
TIMEOUT_SECONDS = 20.0
"""The Observer answers within 15 s, or says why not."""
MAIN_THREAD = "MainThread"
ALL = 0

Row = dict[str, Any]


def stacks() -> None:
    """The order, and what the last one of this viewer brought."""
    names: dict[int, str] = {ALL: "all processes"} | _living()
    with st.container(horizontal=True, vertical_alignment="bottom", key="stacks-order"):
        pid = st.selectbox(
            "Stacks of", list(names), format_func=lambda pid: names.get(pid, NOTHING), key="stacks-pid", width=280
        )
        is_ordered = st.button("Take stacks", key="stacks-take", disabled=not current().is_live)
    if is_ordered:
        _take(pid or ALL)
    taken = st.session_state.get(TAKEN_KEY)
    if taken is None:
        live = "Where each thread is at that moment. It stops no process, and nothing is taken by itself."
        st.caption(live if current().is_live else "This is a recording: its processes have ended.")
        return
    st.caption(f"Taken at {taken['at']}. They do not change until you take them again.")
    for process in taken["processes"]:
        _process(process, is_open=len(taken["processes"]) == 1)


def _living() -> dict[int, str]:
    reading = current().get("/inspect/processes")
    rows = reading.content["processes"] if reading.is_there else []
    return {row["pid"]: f"{name_of(row['role'])} (pid {row['pid']})" for row in rows if row["state"] not in ENDED}


def _take(pid: int) -> None:
    path = f"/inspect/processes/{pid}/stacks" if pid else "/inspect/stacks"
    with st.spinner("Asking the processes"):
        answer = current().post(path, {}, TIMEOUT_SECONDS)
    if answer.is_there:
        at = time.strftime("%H:%M:%S")
        st.session_state[TAKEN_KEY] = {"at": at, "processes": answer.content["processes"]}
    else:
        st.error(f"No stacks were taken: {said(answer.trouble)}.")


def _process(process: Row, is_open: bool) -> None:
    how = f", {escape(str(process['how']))}" if process["how"] else ": none"
    with st.expander(f"{escape(str(process['title']))} (pid {process['pid']}){how}", expanded=is_open):
        if process["says"]:
            st.markdown(said(str(process["says"])))
        st.code(stack_text(process) or "No stack was to be had.", language=None, height=320)


def stack_text(process: Row) -> str:
    """Its threads, the main one first, each from its innermost call; as it was written where none can be told."""
    threads = sorted(process["threads"], key=lambda thread: thread["name"] != MAIN_THREAD)
    told = ["\n  ".join([thread["name"] or f"thread {thread['thread']}", *thread["frames"]]) for thread in threads]
    return "\n\n".join(told) or str(process["text"])

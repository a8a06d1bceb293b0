"""The order for a profile: what, for how long, and at once."""

from typing import Any

import streamlit as st

from vllm_obs.dashboard import url_state
from vllm_obs.dashboard.frame import said
from vllm_obs.dashboard.source import current

KINDS = {"operators": "Operators of the workers", "samples": "Stacks of all processes"}
SAMPLERS = ("auto", "py-spy", "in-process")
MAX_SECONDS = 60.0
MAX_STEPS = 2000


def order_form() -> None:
    """Draw it. A profile restarts nothing, and what is generated is the same to the bit."""
    is_live = current().is_live
    with st.form("profile-order", border=True):
        kind, seconds, steps, sampler, button = st.columns([3, 2, 2, 2, 2], vertical_alignment="bottom")
        with kind:
            wanted = st.segmented_control(
                "Take a profile of", list(KINDS), default="operators", required=True, format_func=KINDS.__getitem__
            )
        with seconds:
            length = st.number_input("Seconds, at most", 0.5, MAX_SECONDS, 5.0, 0.5)
        with steps:
            number = st.number_input(
                "Steps, at most", 1, MAX_STEPS, 200, help="Of operators; stacks know only seconds."
            )
        with sampler:
            who = st.selectbox(
                "Sampler", SAMPLERS, help="Who looks at the stacks: py-spy from outside, or each process."
            )
        with button:
            is_ordered = st.form_submit_button("Start", type="primary", disabled=not is_live, width="stretch")
    if not is_live:
        st.caption("This is a recording: its processes have ended.")
    if is_ordered:
        _order(_body(str(wanted), float(length), int(number), str(who)))


def _body(kind: str, seconds: float, steps: int, sampler: str) -> dict[str, Any]:
    return {"kind": kind, "seconds": seconds} | ({"sampler": sampler} if kind == "samples" else {"steps": steps})


def _order(body: dict[str, Any]) -> None:
    answer = current().post("/inspect/profile", body)
    if answer.is_there:
        url_state.put(profile=answer.content["profile"])
        st.success(
            f"It runs for {body['seconds']:g} s at most; it is listed below and opens here when it is written."
        )
    else:
        st.error(f"No profile was begun: {said(answer.trouble)}.")

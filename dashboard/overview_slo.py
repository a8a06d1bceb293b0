"""The overview's objectives: how many requests kept to them, and the worst that did not; targets can be tried."""

from typing import Any

import streamlit as st

from vllm_obs.dashboard import url_state
from vllm_obs.dashboard.figures import NOTHING, number, seconds, share
from vllm_obs.dashboard.frame import said
from vllm_obs.dashboard.source import current

MAX_TARGETS = 128


def targets_input() -> str:
    """The targets to hold requests to: empty for those of `--slo`."""
    before = url_state.text("slo")
    targets = st.text_input(
        "Objectives to hold the last requests to",
        before,
        max_chars=MAX_TARGETS,
        placeholder="those of --slo; or try ttft=0.5,tpot=50ms",
        key="slo",
        help="ttft, tpot and e2e in seconds or ms. Nothing in the server changes: what has ended is judged again.",
    )
    url_state.put(slo=targets or None)
    return targets or ""


def objectives_panel(targets: str) -> None:
    """Attainment and goodput of the last minute and five, and the worst misses."""
    reading = current().get("/inspect/slo", targets=targets or None)
    note = st.empty()
    left, right = st.columns([2, 3])
    if not reading.is_there:
        note.warning(said(reading.trouble))
    slo = reading.content or {"targets": {}, "windows": {}}
    if reading.is_there and not slo["targets"]:
        note.info("No objectives are set. Start the server with `--slo ttft=0.5,tpot=50ms`, or try some above.")
    with left:
        for place, name in zip(st.columns(2), ("1m", "5m"), strict=True):
            with place:
                _attainment(slo, name)
    with right:
        st.dataframe(
            _worst(slo), hide_index=True, height=178, key="slo-worst", placeholder="–", column_config=_COLUMNS
        )


_COLUMNS: dict[str, Any] = {
    "request": st.column_config.LinkColumn("Worst misses of 5 min", display_text=r"request=([^&]*)"),
    "objective": "Missed",
    "measured": "Took",
    "limit": "Limit",
    "times": st.column_config.NumberColumn("Times", format="%.1f"),
    "stage": "Mostly in",
}


def _attainment(slo: dict[str, Any], name: str) -> None:
    window = slo["windows"].get(name)
    has_any = bool(window) and bool(slo["targets"])
    words = {"1m": "1 min", "5m": "5 min"}[name]
    st.metric(
        f"Kept to it, {words}",
        share(window["attainment"]) if has_any else NOTHING,
        border=True,
        delta=f"goodput {number(window['goodput_requests_per_second'])} /s, {number(window['num_missed'])} missed"
        if has_any
        else "no objectives",
        delta_color="off",
        delta_arrow="off",
        height=128,
    )


def _worst(slo: dict[str, Any]) -> dict[str, list[Any]]:
    window = slo["windows"].get("5m") or {}
    rows = window.get("worst", []) if slo["targets"] else []
    return {
        "request": [url_state.link("requests", request=row["request_id"]) for row in rows],
        "objective": [row["objective"] for row in rows],
        "measured": [seconds(row["measured"]) for row in rows],
        "limit": [seconds(row["limit"]) for row in rows],
        "times": [row["times_limit"] for row in rows],
        "stage": [row["stage"] for row in rows],
    }

"""Telemetry's own health: what was lost, how soon rings are written over, what it costs, which laws are broken."""

from typing import Any

import streamlit as st

from vllm_obs.dashboard.figures import NOTHING, count, number, seconds, share, size
from vllm_obs.dashboard.frame import said
from vllm_obs.dashboard.process_facts import ENDED, name_of
from vllm_obs.dashboard.source import current

TABLE_HEIGHT = 213

Row = dict[str, Any]


def health_panel() -> None:
    """The figures, the rings, and the conservation laws."""
    state, report = current().get("/inspect/state"), current().get("/inspect/telemetry")
    telemetry = state.content["telemetry"] if state.is_there else {}
    _figures(telemetry, report.content if report.is_there else {})
    rings, laws = st.columns(2)
    with rings:
        _rings(telemetry.get("lost_by_role", {}))
    with laws:
        _laws()


def _figures(telemetry: Row, report: Row) -> None:
    spans, cpu = report.get("spans", {}), report.get("cpu", {})
    figures = (
        ("Records lost", number(telemetry.get("num_lost_records")), "Overwritten unread, torn, or never written"),
        ("Observer's CPU", share(_observer_cores()), "Of one core, over the last 10 s"),
        ("Of the run's CPU", share(cpu.get("share")), "The Observer's part of what all processes used so far"),
        ("Last fact", _ago(telemetry.get("last_fact_age_seconds")), "When the newest record was taken in"),
        ("Longest slice", seconds(telemetry.get("max_slice_seconds")), "The longest it was busy without a pause"),
        ("Listeners dropped", number(telemetry.get("num_dropped_listeners")), "They read slower than was sent"),
        ("Spans dropped", number(spans.get("num_dropped")), "That no collector took in time"),
    )
    for column, (label, value, help_text) in zip(st.columns(len(figures)), figures, strict=True):
        column.metric(label, value, help=help_text, border=True)


def _observer_cores() -> float | None:
    rows = _processes()
    shares = [row.get("cpu_share") for row in rows if row["role"] == "Observer" and row["state"] not in ENDED]
    return shares[-1] if shares else None


def _ago(age: float | None) -> str:
    return NOTHING if age is None else f"{seconds(age)} ago"


def _rings(lost: dict[str, int]) -> None:
    rows = [row for row in _processes() if row["ring"]]
    num_lost = sum(lost.values())  # those that were not written are missing where others are, and counted there
    st.markdown(f"**Flight recorders** · {count(num_lost, 'record')} lost" if num_lost else "**Flight recorders**")
    st.dataframe(
        {
            "Process": [name_of(row["role"]) for row in rows],
            "Records": [row["num_records"] for row in rows],
            "Not written": [row["num_dropped_records"] for row in rows],
            "Lost": [lost.get(row["role"], 0) for row in rows],
            "Size": [size(row.get("ring_bytes")) for row in rows],
            "Written over in": [seconds(row.get("ring_turn_seconds")) for row in rows],
        },
        hide_index=True,
        height=TABLE_HEIGHT,
        key="rings",
        placeholder=NOTHING,
    )
    st.caption(
        "A record is lost when it is not written, or its ring is written over before the Observer reads it."
    )


def _laws() -> None:
    reading = current().get("/inspect/invariants")
    laws = reading.content["laws"] if reading.is_there else []
    broken = sorted(laws, key=lambda law: -law["num_broken"])
    names = [said(law["law"].replace("_", " ")) for law in broken if law["num_broken"]]
    hold = f"all {len(laws)} hold" if laws else NOTHING
    are_broken = f":red[broken: {', '.join(names)}]"
    st.markdown(f"**Conservation laws** · {are_broken if names else hold}")
    st.dataframe(
        {
            "Broken": [law["num_broken"] for law in broken],
            "Law": [law["says"] for law in broken],
            "Evidence": [_evidence(law) for law in broken],
        },
        hide_index=True,
        height=TABLE_HEIGHT,
        key="laws",
        column_config={
            "Broken": st.column_config.NumberColumn(width="small"),
            "Law": st.column_config.TextColumn(width="medium"),
        },
        placeholder=NOTHING,
    )
    st.caption("What must be so if all records agree. Where one is broken, do not trust the figures it is about.")


def _evidence(law: Row) -> str:
    return f"{law['subject']}: {law['evidence']}" if law["num_broken"] else NOTHING


def _processes() -> list[Row]:
    reading = current().get("/inspect/processes")
    return list(reading.content["processes"]) if reading.is_there else []

"""A table of requests, in which choosing a row opens its request, and the table of those that were refused."""

import time
from typing import Any

import streamlit as st

from vllm_obs.dashboard import url_state
from vllm_obs.dashboard.figures import NOTHING, NS
from vllm_obs.dashboard.source import current

Row = dict[str, Any]
Columns = dict[str, list[Any]]

CHOICES = "request-choices"
_SECONDS = "%.2f s"
_CONFIG: dict[str, Any] = {
    "came": st.column_config.TextColumn("came at", width=72),
    "label": st.column_config.TextColumn("label", width=122, help="The client's id, or ours of the HTTP request"),
    "state": st.column_config.TextColumn("state", width=76),
    "stage": st.column_config.TextColumn("stage", width=76),
    "reason": st.column_config.TextColumn("waits for", width=105),
    "in_stage": st.column_config.NumberColumn("in it", format=_SECONDS, width=62),
    "seconds": st.column_config.NumberColumn("took", format=_SECONDS, width=66, help="Until now, if it lives"),
    "ttft": st.column_config.NumberColumn("first token", format=_SECONDS, width=76, help="After its first byte"),
    "last": st.column_config.NumberColumn(
        "last token", format="%.2f s ago", width=90, help="A long time ago for one that runs: it is frozen"
    ),
    "prompt": st.column_config.NumberColumn("prompt", width=60, help="Prompt tokens"),
    "cached": st.column_config.NumberColumn("cached", width=62, help="Prompt tokens found in the prefix cache"),
    "output": st.column_config.NumberColumn("output", width=60, help="Output tokens so far"),
    "preempted": st.column_config.NumberColumn("preempted", width=76, help="How often"),
    "ending": st.column_config.TextColumn("ending", width=90),
    "status": st.column_config.NumberColumn("status", format="%d", width=58, help="HTTP status"),
    "account": st.column_config.TextColumn("account", width=72),
    "engine": st.column_config.TextColumn("engine", width=60),
    "id": st.column_config.TextColumn("id", width=290),
}  # fmt: skip
_REFUSED_CONFIG: dict[str, Any] = {
    "came": _CONFIG["came"],
    "status": _CONFIG["status"],
    "reason": st.column_config.TextColumn("reason", width=170),
    "method": st.column_config.TextColumn("method", width=70),
    "path": st.column_config.TextColumn("path", width=220),
    "seconds": st.column_config.NumberColumn("took", format="%.3f s", width=85),
    "sent": st.column_config.NumberColumn("request", format="%d B", width=85),
    "label": st.column_config.TextColumn("label", width=240),
}


def request_columns(rows: list[Row]) -> Columns:
    """Rows of the API as the table's columns."""
    offset = wall_offset()
    return {
        "came": [time_of_day(row["received_at"], offset) for row in rows],
        "label": [row["external_id"] or row["http_id"] for row in rows],
        "state": [row["state"] for row in rows],
        "stage": [row["stage"] or None for row in rows],
        "reason": [row["reason"] or None for row in rows],
        "in_stage": [row.get("in_stage_seconds") for row in rows],
        "seconds": [row["latency_ns"] / NS for row in rows],
        "ttft": [row.get("ttft_seconds") for row in rows],
        "last": [row["last_token_age_seconds"] for row in rows],
        "prompt": [row["num_prompt_tokens"] for row in rows],
        "cached": [row["num_cached_tokens"] for row in rows],
        "output": [row["num_output_tokens"] for row in rows],
        "preempted": [row["num_preemptions"] for row in rows],
        "ending": [ending_of(row) for row in rows],
        "status": [row["status"] for row in rows],
        "account": [row["account"] for row in rows],
        "engine": [row["engine"] or None for row in rows],
        "id": [row["request_id"] for row in rows],
    }


def ending_of(row: Row) -> str | None:
    """How it ended, with its error if it has one; None while it lives."""
    return ": ".join(part for part in (row["finish_reason"], row["error"]) if part) or None


def request_table(rows: list[Row], key: str, height: int) -> None:
    """Draw the rows; the one that is chosen becomes the request of the page."""
    choosable_table(request_columns(rows), [row["request_id"] for row in rows], _CONFIG, key, height)


def refused_table(rows: list[Row], key: str, height: int) -> None:
    """HTTP requests that were answered with an error."""
    offset = wall_offset()
    columns: Columns = {
        "came": [time_of_day(row["received_at"], offset) for row in rows],
        "status": [row["status"] for row in rows],
        "reason": [row["reason"] or ("client left" if row["status"] == 499 else None) for row in rows],
        "method": [row["method"] for row in rows],
        "path": [row["handler"] for row in rows],
        "seconds": [(row["ended_at"] - row["received_at"]) / NS for row in rows],
        "sent": [row["num_request_bytes"] for row in rows],
        "label": [row["external_id"] for row in rows],
    }
    choosable_table(columns, [row["http_id"] for row in rows], _REFUSED_CONFIG, key, height)


def choosable_table(columns: Columns, ids: list[str], config: dict[str, Any], key: str, height: int) -> None:
    """A table whose rows are the requests of `ids`.

    The rows may be others by the time a choice arrives: it is of those that were shown before. How many choices
    there were is part of its key, so that none is found again by who comes back to the table.
    """
    shown_key = f"shown:{key}"
    shown_before: list[str] = st.session_state.get(shown_key, ids)
    st.session_state[shown_key] = ids
    chosen = st.dataframe(
        columns,
        hide_index=True,
        height=height,
        key=f"{key}:{st.session_state.get(CHOICES, 0)}",
        column_config=config,
        on_select="rerun",
        selection_mode="single-row",
        placeholder=NOTHING,
        alt="There is none",
    )
    rows = chosen["selection"]["rows"]
    if rows and rows[0] < len(shown_before):
        open_request(shown_before[rows[0]])


def open_request(name: str) -> None:
    """Show this one, on the whole page."""
    st.session_state[CHOICES] = st.session_state.get(CHOICES, 0) + 1
    url_state.put(request=name, sequence=None)
    st.rerun()


def wall_offset() -> int | None:
    """What makes a moment of the server's clock one since 1970 (ns), None where nobody says."""
    reading = current().get("/inspect/state")
    if not reading.is_there:
        return None
    clock = reading.content["clock"]
    return int(clock["wall_at"] - clock["monotonic_at"])


def time_of_day(at: int, offset: int | None) -> str:
    """A moment of the server's clock as the time here."""
    return NOTHING if offset is None else time.strftime("%H:%M:%S", time.localtime((at + offset) / NS))

"""The incidents: what went wrong in this run, and everything that was kept of one of them."""

import time
from typing import Any
from urllib.parse import quote

import streamlit as st

from vllm_obs.dashboard import url_state
from vllm_obs.dashboard.figures import NS
from vllm_obs.dashboard.frame import note_trouble, panel, said, teach
from vllm_obs.dashboard.incident_reading import incident_reading
from vllm_obs.dashboard.source import Reading, current

LIST_SECONDS = 2.0
_COLUMNS: dict[str, Any] = {
    "when": st.column_config.TextColumn("When", width="small"),
    "what": st.column_config.TextColumn("What", width="small"),
    "who": st.column_config.TextColumn("Who", width="small"),
    "says": st.column_config.TextColumn("What happened", width="large"),
    "read": st.column_config.LinkColumn("Read", display_text="open", width="small"),
}


def render() -> None:
    """Draw the page: the list, and the incident that the address names, or else the newest."""
    reading = current().get("/inspect/incidents")
    names = [row["incident"] for row in reading.content["incidents"]] if reading.is_there else []
    name = url_state.text("incident") or (names[-1] if names else "")
    panel(lambda: _list(is_first_awaited=not name), LIST_SECONDS)
    if name:
        _one(name)


def _list(is_first_awaited: bool) -> None:
    reading, state = current().get("/inspect/incidents"), current().get("/inspect/state")
    note_trouble(reading)
    rows = list(reversed(reading.content["incidents"])) if reading.is_there else []
    offset = _wall_offset(state)
    st.markdown(_headline(reading, rows))
    st.dataframe(_table(rows, offset), hide_index=True, height=178, key="incidents", column_config=_COLUMNS)
    if rows and is_first_awaited:
        st.rerun()


def _headline(reading: Reading, rows: list[dict[str, Any]]) -> str:
    if not reading.is_there:
        return "Start a server with `vllm-obs serve`; what goes wrong in it is listed here."
    if rows:
        return f"##### {said(str(rows[0]['says']))}"
    return (
        "**No incident in this run.** When a process dies, an engine stands still or a step fails, a folder tells "
        "the story: cause, last steps, open requests, stacks, logs. It is read here, by `vllm-obs incident show`, "
        "and with nothing running by `vllm-obs dashboard --incident DIR`."
    )


def _table(rows: list[dict[str, Any]], offset: int) -> dict[str, list[Any]]:
    return {
        "when": [_clock(row["happened_at"] + offset) for row in rows],
        "what": [_words(row) for row in rows],
        "who": [f"{row['role']} ({row['pid']})" for row in rows],
        "says": [row["says"] for row in rows],
        "read": [url_state.link("incidents", incident=row["incident"]) for row in rows],
    }


def _words(row: dict[str, Any]) -> str:
    lasting = row["cause"] == "stalled" and row["ended_at"] is None
    return f"{str(row['cause']).replace('_', ' ')}{', lasts' if lasting else ''}"


def _one(name: str) -> None:
    reading = current().get(f"/inspect/incidents/{quote(name, safe='')}")
    if reading.is_there:
        incident_reading(reading.content)
    else:
        teach(
            "This incident cannot be read here",
            f"{said(reading.trouble)}. `vllm-obs incident list` lists those of all runs.",
        )


def _wall_offset(state: Reading) -> int:
    clock = state.content["clock"] if state.is_there else {"wall_at": 0, "monotonic_at": 0}
    return int(clock["wall_at"] - clock["monotonic_at"])


def _clock(wall_at: int) -> str:
    return time.strftime("%m-%d %H:%M:%S", time.localtime(wall_at / NS))

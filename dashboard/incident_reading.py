"""One incident, read: what happened, in which order, who was hurt, and what each process was doing."""

import shlex
import time
from collections.abc import Callable
from typing import Any

import streamlit as st

from vllm_obs.dashboard import url_state
from vllm_obs.dashboard.figures import NOTHING, NS, count, nanoseconds, number, size
from vllm_obs.dashboard.frame import code, escape, said

MAX_ROWS = 200
MAX_LOG_LINES = 200
TABLE_HEIGHT = 248

Row = dict[str, Any]


def incident_reading(content: Row) -> None:
    """Draw all of an incident's document, as `/inspect/incidents/{name}` answers it."""
    incident = content["incident"]
    _head(content, incident)
    tabs = ("Timeline", "Processes", "Open requests", "Last steps", "Stacks", "Logs", "Configuration")
    parts: tuple[Callable[[Row], None], ...] = (
        _timeline, _processes, _requests, _steps, _stacks, _logs, _configuration,
    )  # fmt: skip
    for tab, part in zip(st.tabs(tabs), parts, strict=True):
        with tab:
            part(content)


def _head(content: Row, incident: Row) -> None:
    with st.container(border=True):
        st.markdown(f"#### {said(str(incident['says']))}")
        happened = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(incident["happened"]["wall_at"] / NS))
        ended = incident.get("ended") or {}
        facts = [happened, f"run {incident['run']}", str(incident["cause"]).replace("_", " ")]
        facts += [str(ended["says"])] if ended.get("says") else []
        facts += ["put together from the flight recorders"] if incident.get("is_reconstructed") else []
        st.caption(" · ".join(map(escape, facts)))
        lines = [f"- {said(str(line))}" for line in incident.get("helps", ())]
        lines += [f"- {said(str(line))}" for line in incident.get("consequences", ())]
        verdict = (incident.get("verdict") or {}).get("says")
        lines += [f"- Until then: {said(str(verdict))}"] if verdict else []
        if damaged := content.get("damaged"):
            lines.append(f"- :red[This folder is damaged; not to be read: {escape(', '.join(damaged))}]")
        st.markdown("\n".join(lines) or "–")
        folder = content.get("folder", "")
        again = f"vllm-obs dashboard --incident {shlex.quote(folder)}"
        st.caption(f"Kept in {code(folder)}; with nothing running: {code(again)}")


def _timeline(content: Row) -> None:
    incident = content["incident"]
    at = incident["happened"]["monotonic_at"]
    rows = incident.get("timeline", [])[-MAX_ROWS:]
    st.dataframe(
        {"Seconds": [(row["at"] - at) / NS for row in rows], "What": [row["says"] for row in rows]},
        hide_index=True,
        height=TABLE_HEIGHT,
        key="incident-timeline",
        column_config={"Seconds": st.column_config.NumberColumn(format="%+.3f", width="small")},
    )


def _processes(content: Row) -> None:
    culprit = content["incident"]["culprit"]
    rows = content["processes"]
    st.dataframe(
        {
            "At fault": ["at fault" if _is(row, culprit) else "" for row in rows],
            "Role": [row["role"] for row in rows],
            "pid": [row["pid"] for row in rows],
            "State": [row["state"] for row in rows],
            "Doing": [row["activity"] for row in rows],
            "For": [nanoseconds(row["activity_ns"]) for row in rows],
            "Step": [row["step"] or None for row in rows],
            "Exit code": [row["exit_code"] for row in rows],
            "Memory": [size((row.get("memory") or {}).get("resident_bytes")) for row in rows],
        },
        hide_index=True,
        height=TABLE_HEIGHT,
        key="incident-processes",
    )


def _is(row: Row, culprit: Row) -> bool:
    return (row["role"], row["pid"]) == (culprit["role"], culprit["pid"])


def _requests(content: Row) -> None:
    told = content["incident"].get("requests") or {}
    rows = content["open_requests"][:MAX_ROWS]
    stages = ", ".join(
        f"{number(amount)} in {escape(stage)}" for stage, amount in (told.get("by_stage") or {}).items()
    )
    st.markdown(f"{count(told.get('num_open', len(rows)), 'request')} open{': ' + stages if stages else ''}.")
    st.dataframe(
        {
            "Request": [row["request_id"] for row in rows],
            "Stage": [row["stage"] for row in rows],
            "Waits for": [row["reason"] or NOTHING for row in rows],
            "In it": [nanoseconds(row["in_stage_ns"]) for row in rows],
            "Age": [nanoseconds(row["age_ns"]) for row in rows],
            "Prompt tokens": [row["num_prompt_tokens"] for row in rows],
            "Output tokens": [row["num_output_tokens"] for row in rows],
        },
        hide_index=True,
        height=TABLE_HEIGHT,
        key="incident-requests",
    )


def _steps(content: Row) -> None:
    rows = content["steps"][-MAX_ROWS:]
    lengths = [(row["updated_at"] - row["schedule_begun_at"]) / 1e6 if row["updated_at"] else None for row in rows]
    st.markdown(
        f"{count(len(content['steps']), 'step')} kept before it; a step without a length had no answer. "
        + (f"[Look at the last one]({url_state.link('scheduler', step=rows[-1]['step'])})" if rows else "")
    )
    st.dataframe(
        {
            "Engine": [row["engine"] for row in rows][::-1],
            "Step": [row["step"] for row in rows][::-1],
            "ms": lengths[::-1],
            "Requests": [row["num_requests"] for row in rows][::-1],
            "Tokens": [row["num_tokens"] for row in rows][::-1],
            "Running": [row["num_running"] for row in rows][::-1],
            "Waiting": [row["num_waiting"] for row in rows][::-1],
            "First waits for": [row["head_reason"] or NOTHING for row in rows][::-1],
            "Failed": [row["failed"] or "" for row in rows][::-1],
        },
        hide_index=True,
        height=TABLE_HEIGHT,
        key="incident-steps",
        column_config={"ms": st.column_config.NumberColumn(format="%.1f")},
    )


def _stacks(content: Row) -> None:
    stacks = content["stacks"]
    if not stacks:
        st.markdown("No stacks were to be had.")
    for title, text in stacks.items():
        with st.expander(escape(title)):
            st.code(text, language=None, height=TABLE_HEIGHT)


def _logs(content: Row) -> None:
    logs = {title: lines for title, lines in content["logs"].items() if lines}
    if not logs:
        st.markdown("No process has logged anything.")
    for title, lines in logs.items():
        with st.expander(f"{escape(title)}, last {number(min(len(lines), MAX_LOG_LINES))} lines"):
            st.code("\n".join(lines[-MAX_LOG_LINES:]), language=None, height=TABLE_HEIGHT)


def _configuration(content: Row) -> None:
    incident = content["incident"]
    left, right = st.columns(2)
    with left:
        st.json(incident.get("config", {}), expanded=True)
    with right:
        st.json({"versions": incident.get("versions", {}), "engines": incident.get("engines", [])}, expanded=True)

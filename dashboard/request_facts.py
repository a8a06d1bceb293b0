"""What is told of a request beside its time: company, cost, cache, parameters, HTTP, trace and commands."""

import shlex
from typing import Any
from urllib.parse import quote

import streamlit as st

from vllm_obs.dashboard import url_state
from vllm_obs.dashboard.figures import NS, count, number, seconds, share, size
from vllm_obs.dashboard.frame import code, escape, said
from vllm_obs.dashboard.request_rows import Row, choosable_table
from vllm_obs.dashboard.source import current, trace_address

COMPANY_HEIGHT = 318
COMPANY_STEPS = 512
"""The Observer counts over so many of its last steps."""


def facts_panel(row: Row, http: list[Row]) -> None:
    """Draw what there is to know beside its time."""
    with st.container(border=True, key="request-facts"):
        company, facts, ways = st.columns([5, 4, 4], gap="medium")
        with company:
            _company(row)
        with facts:
            st.markdown(f"**Cost and cache**\n\n{cost_words(row)}\n\n{cache_words(row)}")
            st.markdown(f"**As it was asked**\n\n{asked_words(row)}")
            st.markdown(f"**HTTP**\n\n{http_words(row, http)}")
        with ways:
            _ways(row)


def company_columns(row: Row) -> dict[str, list[Any]]:
    """Who shared most of its steps."""
    looked_at = min(COMPANY_STEPS, len(row["steps"]["step"]))
    shared = list(row["companions"].values())
    return {
        "request": list(row["companions"]),
        "steps": shared,
        "share": [min(1.0, num / looked_at) if looked_at else 0.0 for num in shared],
    }


def _company(row: Row) -> None:
    st.markdown(f"**Company**: {company_words(row)}")
    columns = company_columns(row)
    config = {
        "request": st.column_config.TextColumn("request", width=235),
        "steps": st.column_config.NumberColumn("together", width=72, help="Steps in which both ran"),
        "share": st.column_config.ProgressColumn("share", format="percent", min_value=0, max_value=1, width=90),
    }
    choosable_table(columns, columns["request"], config, f"company:{row['request_id']}", COMPANY_HEIGHT)


def company_words(row: Row) -> str:
    """How many ran beside it."""
    if not row["num_steps"]:
        return "it has not run yet"
    if row["peak_company"] <= 1:
        return "it ran alone"
    mean, peak = number(row["mean_company"]), number(row["peak_company"])
    return f"{mean} in a step on average, {peak} at most; who most often"


def cost_words(row: Row) -> str:
    """Step time and block-seconds."""
    if row["step_seconds"] is None:
        return "What it cost is not known."
    of_steps = row["step_seconds"] / (row["latency_ns"] / NS) if row["latency_ns"] else None
    return (
        f"Step time **{seconds(row['step_seconds'])}** ({share(of_steps)} of its own time), "
        f"**{number(row['block_seconds'])} block-seconds** of KV cache."
    )


def cache_words(row: Row) -> str:
    """What it found, why not more, and the way to its blocks."""
    link = url_state.link("kv", engine=row["engine"] or "0", request=row["request_id"])
    found = f"**{number(row['num_cached_tokens'])} of {count(row['num_prompt_tokens'], 'prompt token')}** cached"
    reading = current().get(f"/inspect/requests/{quote(row['request_id'], safe='')}/cache")
    prefix = (reading.content["sequences"][0].get("prefix") if reading.is_there else None) or {}
    why = f" {said(str(prefix['says']))}" if prefix.get("says") else ""
    return f"{found}.{why} [Its KV blocks]({link})"


def asked_words(row: Row) -> str:
    """The parameters it came with; of its text nothing is known here."""
    asked = row["submitted"]
    parts = [
        "streamed" if asked["is_streamed"] else "in one piece",
        f"max tokens {number(asked['max_tokens'])}",
        f"temperature {asked['temperature']:g}",
        f"top p {asked['top_p']:g}",
        f"priority {number(asked['priority'])}",
        f"account {escape(row['account'])}",
        f"API server {number(row['client_index'])}",
    ]
    return " · ".join(parts)


def http_words(row: Row, http: list[Row]) -> str:
    """The HTTP request it came in, once that is over."""
    known = next((each for each in http if each["http_id"] == row["http_id"]), None)
    if known is None:
        return "It is not over yet." if row["http_id"] else "It did not come over HTTP."
    first = (known["first_byte_at"] - known["received_at"]) / NS if known["first_byte_at"] else None
    parts = [
        code(f"{known['method']} {known['handler']}"),
        f"status **{known['status']}**" + (f" ({code(known['reason'])})" if known["reason"] else ""),
        f"first byte after {seconds(first)}",
        f"over after {seconds((known['ended_at'] - known['received_at']) / NS)}",
        f"{size(known['num_request_bytes'])} received",
        f"{size(known['num_response_bytes'])} sent",
    ]
    return " · ".join(parts)


def _ways(row: Row) -> None:
    """Its trace and its id, to be copied."""
    trace_id = row.get("trace_id") or row["submitted"]["trace_parent"][3:35]
    st.markdown(f"**Trace**: {trace_words(trace_id)}")
    place = st.empty()
    if trace_id:
        place.code(trace_id, language=None)
    st.markdown("**The same on the command line**")
    name = shlex.quote(row["request_id"])
    st.code(f"vllm-obs explain {name}", language=None, wrap_lines=True)
    st.code(
        f"curl -s {current().url or 'http://127.0.0.1:9000'}/inspect/requests/{name}",
        language=None,
        wrap_lines=True,
    )


def trace_words(trace_id: str) -> str:
    """Where its trace can be read."""
    if not trace_id:
        return "it was not traced"
    address = trace_address(trace_id)
    if not address:
        return "no address is known; `--trace-url` of the dashboard says it"
    return f"[open it]({address})"

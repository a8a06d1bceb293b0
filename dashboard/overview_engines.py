"""The overview's engines: queues, KV use, preemptions, where the loop's time goes, and why requests wait."""

from html import escape as escape_html
from typing import Any

import streamlit as st

from vllm_obs.dashboard.drawing import Part, legend, stacked_bar
from vllm_obs.dashboard.figures import NOTHING, count, known, number, share
from vllm_obs.dashboard.frame import escape
from vllm_obs.dashboard.palette import BLOCK_COLOURS, PHASE_COLOURS
from vllm_obs.dashboard.source import current

MAX_ENGINES = 8
LOOP_PARTS = (("schedule", "schedule"), ("execute", "forward"), ("sample", "sample"), ("update", "update"))
"""Share of the loop → whose colour it has."""
OVERHEAD = ("schedule", "update")


def engine_panel() -> None:
    """A row for each engine, MAX_ENGINES at most."""
    state, trend = current().get("/inspect/state"), current().get("/inspect/trend", every=5)
    if not state.is_there:
        st.caption(NOTHING)
        return
    levels = trend.content["engines"] if trend.is_there else {}
    engines = state.content["engines"]
    st.html("<div></div>" if engines else "<em>No engine has started yet.</em>")
    for engine in engines[:MAX_ENGINES]:
        _engine(engine, levels.get(engine["engine"], {}), state.content["waiting"])
    if len(engines) > MAX_ENGINES:
        st.caption(f"{len(engines) - MAX_ENGINES} more engines are on the Scheduler page.")


def _engine(engine: dict[str, Any], levels: dict[str, list[Any]], waiting: dict[str, Any]) -> None:
    running, waits, blocks, preemptions, loop = st.columns([1, 1, 2, 1, 3])
    with running:
        st.metric("Running", number(engine["num_running"]), border=True, height=128,
                  chart_data=known(levels.get("num_running", [])))  # fmt: skip
    with waits:
        st.metric("Waiting", number(engine["num_waiting"]), border=True, height=128,
                  chart_data=known(levels.get("num_waiting", [])))  # fmt: skip
    with blocks, st.container(border=True, height=128):
        st.html(_blocks(engine))
    with preemptions:
        st.metric("Preempted, 5 min", _sum(levels.get("num_preempted", [])), border=True, height=128,
                  chart_data=known(levels.get("num_preempted", [])), chart_type="bar")  # fmt: skip
    with loop, st.container(border=True, height=128):
        st.html(_loop(engine))
    st.markdown(_why(engine, waiting))


def _blocks(engine: dict[str, Any]) -> str:
    blocks = engine["blocks"]
    total = blocks["num_blocks"] or 1
    parts = [
        Part(name, blocks[f"num_{name}"] / total, BLOCK_COLOURS[name], f"{name} {number(blocks[f'num_{name}'])}")
        for name in ("active", "cached", "free")
    ]
    doubt = "" if blocks["is_exact"] else " (records are missing)"
    title = f"KV blocks: {share(blocks['usage'])} of {number(blocks['num_blocks'])} in use{doubt}"
    return _bar(title, parts)


def _loop(engine: dict[str, Any]) -> str:
    shares = engine["loop"]["10s"]
    parts = [
        Part(name, shares[name], PHASE_COLOURS[colour], f"{name} {share(shares[name])}")
        for name, colour in LOOP_PARTS
    ]
    overhead = sum(shares[name] for name in OVERHEAD)
    title = (
        f"Engine {engine['engine']}, last 10 s: busy {share(shares['busy'])}, idle {share(shares['idle'])}, "
        f"overhead {share(overhead)}"
    )
    return _bar(title, parts)


def _bar(title: str, parts: list[Part]) -> str:
    return f"<div style='margin-bottom:6px'>{escape_html(title)}</div>{stacked_bar(parts, title)}{legend(parts)}"


def _why(engine: dict[str, Any], waiting: dict[str, Any]) -> str:
    reasons = {name: number_ for name, number_ in waiting["by_reason"].items() if name != "head_of_line"}
    if not engine["num_waiting"]:
        return "Nobody waits. [Look at its steps](/scheduler)"
    head = engine["head_reason"] or next(iter(reasons), "unknown")
    behind = waiting["by_reason"].get("head_of_line", 0)
    queue = f"; {count(behind, 'request')} stand behind it" if behind else ""
    return (
        f"The first in line waits for **{escape(head.replace('_', ' '))}**{queue}. [Who waits and why](/scheduler)"
    )


def _sum(values: list[Any]) -> str:
    seen = known(values)
    return number(sum(seen)) if seen else NOTHING

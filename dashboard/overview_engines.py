"""The overview's engines: queues, KV use, preemptions, where the loop's time goes, and why requests wait."""

from html import escape as escape_html
from typing import Any

import streamlit as st

from vllm_obs.dashboard import url_state
from vllm_obs.dashboard.drawing import Part, legend, stacked_bar
from vllm_obs.dashboard.figures import NOTHING, count, known, number, seconds, share
from vllm_obs.dashboard.frame import escape
from vllm_obs.dashboard.palette import BLOCK_COLOURS, LEVEL_COLOURS, PHASE_COLOURS, STAGE_COLOURS
from vllm_obs.dashboard.source import current

NS = 1e9
MAX_ENGINES = 8
LOOP_PARTS = (("schedule", "schedule"), ("execute", "forward"), ("sample", "sample"), ("update", "update"))
"""Share of the loop → whose colour it has."""
OVERHEAD = ("schedule", "update")
LOOP_SECONDS = 10
STILL_SECONDS = 2
"""After so long without an answer an engine that runs somebody is said to stand still, noticed or not."""


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
        _engine(engine, levels.get(engine["engine"], {}), state.content)
    if len(engines) > MAX_ENGINES:
        st.caption(f"{len(engines) - MAX_ENGINES} more engines are on the Scheduler page.")


def standstill(state: dict[str, Any], engine: dict[str, Any]) -> tuple[float, int] | None:
    """For how many seconds an engine has stood still, and in which step; None while it moves or is idle."""
    if engine["state"] != "awake":
        return None
    now, step = state["clock"]["monotonic_at"], engine.get("under_way")
    stall = next((each for each in state["stalls"]["current"] if each["engine"] == engine["engine"]), None)
    if step is not None:
        age, number_ = max(0, now - step["begun_at"]) / NS, step["step"]
    elif stall is not None:
        age, number_ = max(0, now - stall["stuck_at"]) / NS, stall["step"]
    else:
        age, number_ = engine["last_step_age_seconds"] or 0.0, engine["last_step"]
    if stall is not None or (age > STILL_SECONDS and engine["num_running"]):
        return age, number_
    return None


def _engine(engine: dict[str, Any], levels: dict[str, list[Any]], state: dict[str, Any]) -> None:
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
        st.html(_loop(engine, standstill(state, engine)))
    st.markdown(_why(engine, state["waiting"]))


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


def _loop(engine: dict[str, Any], still: tuple[float, int] | None) -> str:
    shares = engine["loop"]["10s"]
    parts = [
        Part(name, shares[name], PHASE_COLOURS[colour], f"{name} {share(shares[name])}")
        for name, colour in LOOP_PARTS
    ]
    if still is not None:
        return _still_loop(engine, parts, still)
    overhead = sum(shares[name] for name in OVERHEAD)
    title = (
        f"Engine {engine['engine']}, last 10 s: busy {share(shares['busy'])}, idle {share(shares['idle'])}, "
        f"overhead {share(overhead)}"
    )
    return _bar(title, parts)


def _still_loop(engine: dict[str, Any], parts: list[Part], still: tuple[float, int]) -> str:
    """What was before the standstill, and then that: it takes what of the time is left."""
    age, step = still
    stalled = min(1.0, age / LOOP_SECONDS)
    before, room = sum(part.share for part in parts), 1.0 - stalled
    scale = min(1.0, room / before) if before > 0 else 0.0
    kept = [part._replace(share=part.share * scale) for part in parts]
    kept.append(Part("stalled", stalled, STAGE_COLOURS["stalled"], f"stands still {share(stalled)}"))
    title = f"Engine {engine['engine']} has stood still for {seconds(age)} in step {step}"
    return _bar(title, kept, LEVEL_COLOURS["bad"])


def _bar(title: str, parts: list[Part], colour: str = "") -> str:
    style = f"margin-bottom:6px;color:{colour};font-weight:600" if colour else "margin-bottom:6px"
    return f"<div style='{style}'>{escape_html(title)}</div>{stacked_bar(parts, title)}{legend(parts)}"


def _why(engine: dict[str, Any], waiting: dict[str, Any]) -> str:
    link = url_state.link("scheduler", engine=engine["engine"])
    own = engine.get("by_reason", waiting["by_reason"])
    reasons = {name: number_ for name, number_ in own.items() if name != "head_of_line"}
    if not engine["num_waiting"]:
        return f"Nobody waits. [Look at its steps]({link})"
    head = engine["head_reason"] or next(iter(reasons), "unknown")
    behind = own.get("head_of_line", 0)
    queue = f"; {count(behind, 'request')} stand behind it" if behind else ""
    return f"The first in line waits for **{escape(head.replace('_', ' '))}**{queue}. [Who waits and why]({link})"


def _sum(values: list[Any]) -> str:
    seen = known(values)
    return number(sum(seen)) if seen else NOTHING

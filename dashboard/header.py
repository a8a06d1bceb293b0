"""The strip above every page: is it well, which run and model, how fresh, and whether the page is paused."""

import time
from typing import Any

import streamlit as st

from vllm_obs.dashboard import url_state
from vllm_obs.dashboard.figures import NOTHING, NS, number, seconds
from vllm_obs.dashboard.frame import REFRESH_SECONDS, escape, said, teach
from vllm_obs.dashboard.server_table import server_selector
from vllm_obs.dashboard.source import Reading, Replaced, current

HEALTH_COLOURS = {
    "ok": "green",
    "idle": "green",
    "starting": "blue",
    "draining": "orange",
    "restarting": "orange",
    "degraded": "orange",
    "paused": "orange",
    "recording": "violet",
    "stalled": "red",
    "broken": "red",
    "engine_dead": "red",
}
"""Word of the run's health → colour of its badge."""

NEWS_SECONDS = 300.0
_QUEUES = ("num_running", "num_waiting")
_DRAWN_RUN = "run that the page was drawn of"


def header() -> bool:
    """Draw the strip, which refreshes by itself; whether there is anything for a page to show."""
    server_selector()
    reading = current().get("/inspect/state")
    st.session_state[_DRAWN_RUN] = _run_of(reading)
    # Also above a page that is held: that the server stalls or ends is news at any step.
    st.fragment(_strip, run_every=REFRESH_SECONDS if current().is_live else None)()
    if not reading.is_there:
        _no_server()
        return False
    _pause_bar()
    return True


def _strip() -> None:
    reading = current().get("/inspect/state")
    run = _run_of(reading)
    if run and run != st.session_state.get(_DRAWN_RUN, run):
        # The page below was drawn of no run, or of one that has ended.
        st.session_state[_DRAWN_RUN] = run
        st.rerun()
    word, colour, words = health(reading)
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="strip"):
        st.badge(escape(word), color=colour)  # type: ignore[arg-type]
        st.markdown(words + replaced_words(current().replaced))


def _run_of(reading: Reading) -> str:
    return str(reading.content["run"]) if reading.is_there else ""


def _no_server() -> None:
    teach(
        "No server is known yet",
        "Start one with `vllm-obs serve`, or `vllm-obs demo` for one without a model under a load that changes. "
        "This page finds it by itself.\n\n"
        "Of runs that have ended: `vllm-obs incident` tells what went wrong, `vllm-obs dashboard --incident DIR` "
        "shows the last steps before it, and `vllm-obs record last.rec` with `vllm-obs dashboard --recording "
        "last.rec` shows the last minute.",
    )


def health(reading: Reading) -> tuple[str, str, str]:
    """The badge's word and colour, and the line beside it."""
    if not reading.is_there:
        return "no server", "red", said(reading.trouble)
    state = reading.content
    if reading.trouble:
        age = seconds(reading.age_seconds)
        return "gone", "red", f"**The server has not answered for {age}.** What is shown is how it was then."
    word = str(state["health"]["word"])
    return word, HEALTH_COLOURS.get(word, "gray"), _line(state)


def replaced_words(replaced: Replaced | None) -> str:
    """That the server was started anew, for as long as somebody may not have seen it."""
    age = time.monotonic() - replaced.seen_at if replaced is not None else NEWS_SECONDS
    if replaced is None or age >= NEWS_SECONDS:
        return ""
    return f" · :orange[this is another run since {seconds(age)}; {escape(replaced.run)} was before it]"


def _line(state: dict[str, Any]) -> str:
    models = ", ".join(escape(name) for name in state["models"]) or NOTHING
    num_running, num_waiting = (sum(engine[name] for engine in state["engines"]) for name in _QUEUES)
    parts = [
        f"**{models}**",
        f"run {escape(state['run'])}",
        f"up {seconds(state['uptime_seconds'])}",
        f"{number(num_running)} running, {number(num_waiting)} waiting",
        *_losses(state),
    ]
    return " · ".join(parts)


def _losses(state: dict[str, Any]) -> list[str]:
    """What makes the figures incomplete is said beside them."""
    telemetry, losses = state["telemetry"], []
    if (began_at := telemetry["resumed_at"]) is not None:
        age = (state["clock"]["monotonic_at"] - began_at) / NS
        if age < NEWS_SECONDS:
            losses.append(f":orange[the Observer began anew {seconds(age)} ago: what ended before is not listed]")
    if telemetry["num_lost_records"]:
        losses.append(f":orange[{number(telemetry['num_lost_records'])} records lost]")
    if telemetry["num_broken_laws"] and current().is_live:
        losses.append(f":red[{number(telemetry['num_broken_laws'])} conservation laws broken]")
    elif telemetry["num_broken_laws"]:
        losses.append(":orange[it begins in the middle of the run, so conservation laws cannot be judged]")
    if telemetry["caveat"]:
        losses.append(f":orange[{escape(str(telemetry['caveat']))}]")
    return losses


def _pause_bar() -> None:
    step = url_state.paused_step()
    if step is None:
        return
    with st.container(horizontal=True, vertical_alignment="center", key="pause-bar"):
        st.markdown(f":orange-badge[paused] after step **{step}** of engine {escape(url_state.engine())}")
        st.button("Follow live", on_click=url_state.put, kwargs={"step": None}, key="follow-live")

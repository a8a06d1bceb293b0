"""The strip above every page: is it well, which run and model, how fresh, and whether the page is paused."""

import time
from typing import Any

import streamlit as st

from vllm_obs.dashboard import url_state
from vllm_obs.dashboard.figures import NOTHING, number, seconds
from vllm_obs.dashboard.frame import escape, panel
from vllm_obs.dashboard.source import Reading, Replaced, current

HEALTH_COLOURS = {
    "ok": "green",
    "idle": "green",
    "starting": "blue",
    "draining": "orange",
    "paused": "orange",
    "recording": "violet",
    "stalled": "red",
    "engine_dead": "red",
}
"""Word of the run's health → colour of its badge."""

NEWS_SECONDS = 300.0


def header() -> None:
    """Draw the strip; it refreshes by itself."""
    panel(_strip)
    _pause_bar()


def _strip() -> None:
    reading = current().get("/inspect/state")
    word, colour, words = health(reading)
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="strip"):
        st.badge(escape(word), color=colour)  # type: ignore[arg-type]
        st.markdown(words + replaced_words(current().replaced))


def health(reading: Reading) -> tuple[str, str, str]:
    """The badge's word and colour, and the line beside it."""
    if not reading.is_there:
        return (
            "no server",
            "red",
            f"{escape(reading.trouble)}. Start one with `vllm-obs serve` or `vllm-obs demo`.",
        )
    state = reading.content
    if reading.trouble:
        age = seconds(reading.age_seconds)
        return "gone", "red", f"**The server does not answer since {age}.** What is shown is how it was then."
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
    requests = state["requests"]
    parts = [
        f"**{models}**",
        f"run {escape(state['run'])}",
        f"up {seconds(state['uptime_seconds'])}",
        f"{number(requests['num_running'])} running, {number(requests['num_waiting'])} waiting",
        *_losses(state["telemetry"]),
    ]
    return " · ".join(parts)


def _losses(telemetry: dict[str, Any]) -> list[str]:
    """What makes the figures incomplete is said beside them."""
    losses = []
    if telemetry["num_lost_records"]:
        losses.append(f":orange[{number(telemetry['num_lost_records'])} records lost]")
    if telemetry["num_broken_laws"]:
        losses.append(f":red[{number(telemetry['num_broken_laws'])} conservation laws broken]")
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

"""The scheduler page: the step stream, who waits and why, who runs; or one step told whole."""

from typing import Any

import streamlit as st

from vllm_obs.dashboard import url_state
from vllm_obs.dashboard.canvas.step_stream import KEY, step_stream
from vllm_obs.dashboard.engine_choice import engine_selector
from vllm_obs.dashboard.frame import note_trouble, panel, teach
from vllm_obs.dashboard.scheduler_step import budget_of, step_in_words
from vllm_obs.dashboard.scheduler_tables import queue_table, reason_bars, running_table, take_chosen
from vllm_obs.dashboard.scheduler_words import head_sentence
from vllm_obs.dashboard.source import current

LOAD = "vllm-obs bench serve --num-prompts 200 --max-concurrency 32 --ignore-eos"
NOTHING_RUNS = f"Nobody runs and nobody waits. Load it to see steps: `{LOAD}`"
NO_QUEUES: dict[str, Any] = {
    "head_reason": "", "num_waiting": 0, "num_counted": 0, "by_reason": {}, "waiting": [], "num_running": 0,
    "running": [],
}  # fmt: skip
"""The queues of an engine that nothing is known of."""


def render() -> None:
    """Draw the page."""
    reading = current().get("/inspect/state")
    if not reading.is_there:
        teach(
            "There is no server to look at.",
            "Start one with `vllm-obs serve`, or one with load of its own with `vllm-obs demo`.",
        )
        return
    engines = [row["engine"] for row in reading.content["engines"]]
    if not engines:
        teach("No engine has started yet.", "Its steps appear here as soon as it runs one.")
        return
    take_chosen()
    engine_selector(engines, "scheduler-engine")
    step = url_state.paused_step()
    step_stream(url_state.engine(), step, url_state.text("request"), _picked)
    panel(_queues if step is None else _step)


def _picked() -> None:
    """A step, a request or neither was picked on the canvas."""
    picked = st.session_state[KEY].get("pick") or {}
    if "step" in picked:
        url_state.put(step=_whole(picked["step"]))
    if "request" in picked:
        request = picked["request"]
        url_state.put(request=str(request)[: url_state.MAX_LENGTH] if request else None)


def _whole(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) and 0 <= value < 2**62 else None


def _queues() -> None:
    """Both queues as they are now."""
    reading = current().get("/inspect/queues", engine=url_state.engine())
    note_trouble(reading)
    queues = reading.content or NO_QUEUES
    is_idle = not queues["num_running"] and not queues["num_waiting"]
    left, right = st.columns([2, 3], gap="medium")
    with left, st.container(border=True, height="stretch"):
        st.markdown("**Who waits, and why**")
        st.markdown(NOTHING_RUNS if is_idle else head_sentence(queues))
        reason_bars(queues["by_reason"], queues["num_counted"], queues["num_waiting"])
    with right, st.container(border=True, height="stretch"):
        st.markdown("**The line**, in the scheduler's order")
        queue_table(queues["waiting"], queues["num_waiting"])
    with st.container(border=True):
        st.markdown("**Who runs**, and how far each is")
        running_table(queues["running"], queues["num_running"])


def _step() -> None:
    """The step at which the page is paused."""
    step = url_state.paused_step()
    if step is not None:
        step_in_words(step, budget_of(url_state.engine()))

"""One step told whole: in sentences, with its line, its rows and its ranks; and the way to the steps beside it."""

from typing import Any

import streamlit as st

from vllm_obs.dashboard import url_state
from vllm_obs.dashboard.figures import count, nanoseconds, number
from vllm_obs.dashboard.frame import escape, note_trouble
from vllm_obs.dashboard.scheduler_tables import batch_table, queue_table, rank_table
from vllm_obs.dashboard.scheduler_words import step_sentences
from vllm_obs.dashboard.source import current

REACH = 16
"""So far away the next step that is kept is looked for."""


def step_in_words(number_of_step: int, budget: int) -> None:
    """Draw the panels of a step; where it is not kept, say so."""
    engine = url_state.engine()
    reading = current().get(f"/inspect/steps/{number_of_step}", engine=engine)
    queue = current().get(f"/inspect/steps/{number_of_step}/queue", engine=engine)
    _steps_beside(number_of_step, engine)
    note_trouble(reading)
    if not reading.is_there:
        st.markdown("It may be too old to be kept, or not over yet. *Follow live* above goes on with the newest.")
        return
    step, line = reading.content, queue.content or {}
    num_waiting = line.get("num_waiting", step["planned"]["num_waiting"])
    left, right = st.columns([2, 3], gap="medium")
    with left, st.container(border=True, height="stretch"):
        st.markdown(f"**Step {number_of_step} in words**")
        st.markdown("\n".join(f"- {sentence}" for sentence in step_sentences(step, budget, num_waiting)))
        _figures(step, budget)
    with right, st.container(border=True, height="stretch"):
        st.markdown("**Who waited when it was planned**")
        queue_table(line.get("waiting", []), num_waiting, number_of_step)
        if queue.trouble:
            st.caption(escape(queue.trouble))
    with st.container(border=True):
        rows, ranks = st.columns([2, 1], gap="medium")
        with rows:
            st.markdown(f"**Its batch**: {count(len(step['planned']['request_ids']), 'request')}")
            batch_table(step, number_of_step)
        with ranks:
            st.markdown("**Its ranks**")
            rank_table(step["workers"])
            st.caption("Of several ranks the slowest holds up the others before they sample.")


def _figures(step: dict[str, Any], budget: int) -> None:
    planned, answered = step["planned"], step["answered"]
    num_tokens = sum(planned["num_scheduled_tokens"])
    took = answered["updated_at"] - planned["schedule_begun_at"] if answered else None
    figures = [
        ("Tokens", f"{number(num_tokens)} / {number(budget)}" if budget else number(num_tokens)),
        ("Took", nanoseconds(took)),
        ("Running", number(planned["num_running"])),
        ("Blocks active", number(planned["num_active_blocks"])),
        ("Cached", number(planned["num_cached_blocks"])),
        ("Free", number(planned["num_free_blocks"])),
    ]
    for column, pair in zip(st.columns(3) + st.columns(3), figures, strict=True):
        column.metric(*pair)


def _steps_beside(number_of_step: int, engine: str) -> None:
    """Buttons to the step before and after, as far as they are kept, and the pages that show the same step."""
    before, after = steps_beside(number_of_step, engine)
    with st.container(horizontal=True, vertical_alignment="center", key="steps-beside"):
        _button("‹ Step before", before, "step-before")
        _button("Step after ›", after, "step-after")
        link = url_state.link("kv", engine=engine, step=number_of_step)
        st.markdown(f"[KV blocks as they were after this step]({link})")


def _button(label: str, step: int | None, key: str) -> None:
    words = label if step is None else f"{label}: {step}"
    st.button(words, key=key, disabled=step is None, on_click=url_state.put, kwargs={"step": step})


def steps_beside(number_of_step: int, engine: str) -> tuple[int | None, int | None]:
    """The kept steps before and after one."""
    reading = current().get(
        "/inspect/steps", engine=engine, since=max(0, number_of_step - REACH - 1), limit=2 * REACH
    )
    steps = reading.content["steps"]["step"] if reading.is_there else []
    before = max((step for step in steps if step < number_of_step), default=None)
    after = min((step for step in steps if step > number_of_step), default=None)
    return before, after


def budget_of(engine: str) -> int:
    """The most tokens that the engine computes in a step, 0 where it has not said so yet."""
    reading = current().get("/inspect/config")
    described = (reading.content or {}).get("engines", {}).get(engine, {})
    return int(described.get("max_num_batched_tokens") or 0)

"""Where a request's time went: the waterfall with its steps, the same as tables, and the way to a step."""

from typing import Any

import streamlit as st

from vllm_obs.dashboard import url_state
from vllm_obs.dashboard.canvas.waterfall import KEY, waterfall
from vllm_obs.dashboard.figures import NOTHING, NS, count, nanoseconds, number
from vllm_obs.dashboard.request_lanes import KIND_WORDS, lane_of, marks_of, step_runs
from vllm_obs.dashboard.request_rows import Row
from vllm_obs.dashboard.scheduler_words import reason_words
from vllm_obs.dashboard.source import current

STAGES_HEIGHT = 349
ROW_HEIGHT = 26
MAX_RUNS_SHOWN = 200
STAGE_WORDS: dict[str, str] = {
    "receive": "reading and checking the request",
    "render": "making the prompt of its messages",
    "tokenize": "making tokens of the text",
    "submit": "on the way to the engine",
    "queue": "waiting to be scheduled for the first time",
    "prefill": "computing the prompt",
    "decode": "making output tokens",
    "preempted": "waiting, its KV blocks taken away",
    "recompute": "computing again what preemption took",
    "stalled": "left out of steps while it ran",
    "return": "on the way back to the API server",
    "detokenize": "making text of the last tokens",
    "deliver": "until the client had the last byte",
}
"""Stage → what happens in it."""


def waterfall_panel(row: Row, lanes: list[Row], is_growing: bool) -> None:
    """Draw the picture of these sequences, the chosen one in its stages, and its tables."""
    runs = step_runs(row)
    data = {
        "lanes": [lane_of(lane) for lane in lanes],
        "chosen": next(place for place, lane in enumerate(lanes) if lane is row),
        "is_sibling": len({lane["http_id"] for lane in lanes}) == 1,
        "is_growing": is_growing,
        "marks": marks_of(row, _held_step(row)),
        "runs": [[run.first_step, run.num_steps, run.num_tokens, run.kind] for run in runs],
        "words": {"stage": STAGE_WORDS},
    }
    with st.container(border=True, key="request-waterfall"):
        waterfall(data, lambda: None)
    _go_where_picked()
    with st.container(border=True, key="request-tables"):
        stages, waits, steps = st.columns([5, 4, 4], gap="medium")
        with stages:
            _stage_table(row)
        with waits:
            _wait_table(row)
        with steps:
            _step_table(row, runs)


def _held_step(row: Row) -> Row | None:
    """The step at which the page is held, of the engine that it runs in."""
    step = url_state.paused_step()
    if step is None or row["engine"] != url_state.engine():
        return None
    reading = current().get(f"/inspect/steps/{step}", engine=row["engine"])
    return reading.content["planned"] if reading.is_there else None


def _go_where_picked() -> None:
    """A step of the strip opens on the Scheduler page, another lane becomes the one that is told of."""
    picked = (st.session_state.get(KEY) or {}).get("pick") or {}
    sequence, step = picked.get("sequence"), picked.get("step")
    if isinstance(sequence, int | float):
        url_state.put(sequence=int(sequence))
        st.rerun()
    if isinstance(step, int | float) and 0 <= step < 2**62:
        from vllm_obs.dashboard.page_list import PAGES

        url_state.put(step=int(step))
        st.switch_page(next(page for page in PAGES if page.name == "scheduler").as_page())


def stage_columns(row: Row) -> dict[str, list[Any]]:
    """Its stages in their order, and their sum, which is its latency."""
    lengths = {stage: length for stage, length in row["stage_ns"].items() if length}
    whole = sum(lengths.values())
    shares = [length / whole for length in lengths.values()]
    return {
        "stage": [*lengths, "sum"],
        "seconds": [length / NS for length in (*lengths.values(), whole)],
        "share": [*shares, 1.0 if whole else 0.0],
        "what": [*(STAGE_WORDS.get(stage, "") for stage in lengths), sum_words(row, whole)],
    }


def sum_words(row: Row, whole: int) -> str:
    """Whether the stages are all of its time."""
    missing = row["latency_ns"] - whole
    if not missing:
        return "all of its latency, to the nanosecond"
    return f"{nanoseconds(abs(missing))} {'less' if missing > 0 else 'more'} than its latency"


def _stage_table(row: Row) -> None:
    st.markdown("**Stages**")
    config = {
        "seconds": st.column_config.NumberColumn("seconds", format="%.6f", width=85),
        "share": st.column_config.ProgressColumn("share", format="percent", min_value=0, max_value=1, width=90),
        "stage": st.column_config.TextColumn("stage", width=85),
        "what": st.column_config.TextColumn("what happens", width=230),
    }
    st.dataframe(
        stage_columns(row),
        hide_index=True,
        height=STAGES_HEIGHT,
        row_height=ROW_HEIGHT,
        key="stages",
        column_config=config,
    )


def _wait_table(row: Row) -> None:
    st.markdown("**Why it waited**")
    waits = sorted(row["waits"].items(), key=lambda item: -int(item[1]))
    config = {
        "reason": st.column_config.TextColumn("reason", width=115),
        "seconds": st.column_config.NumberColumn("seconds", format="%.6f", width=85),
        "what": st.column_config.TextColumn("because", width=230),
    }
    columns = {
        "reason": [reason or "unknown" for reason, _ in waits],
        "seconds": [length / NS for _, length in waits],
        "what": [reason_words(reason) for reason, _ in waits],
    }
    st.dataframe(columns, hide_index=True, height=STAGES_HEIGHT, key="waits", column_config=config,
                 alt="It never waited", placeholder=NOTHING)  # fmt: skip


def _step_table(row: Row, runs: list[Any]) -> None:
    engine, name = row["engine"], row["request_id"]
    st.markdown(f"**Steps**: {steps_words(row)}")
    shown = runs[-MAX_RUNS_SHOWN:]
    config = {
        "first": st.column_config.NumberColumn("from step", format="%d", width=75),
        "last": st.column_config.NumberColumn("to", format="%d", width=60),
        "tokens": st.column_config.NumberColumn("tokens each", width=80),
        "kind": st.column_config.TextColumn("for", width=85),
        "link": st.column_config.LinkColumn("", display_text="open", width=50),
    }
    columns = {
        "first": [run.first_step for run in shown],
        "last": [run.last_step for run in shown],
        "tokens": [run.num_tokens for run in shown],
        "kind": [KIND_WORDS[run.kind] for run in shown],
        "link": [url_state.link("scheduler", engine=engine, step=run.first_step, request=name) for run in shown],
    }
    st.dataframe(columns, hide_index=True, height=STAGES_HEIGHT - 25, key="step-runs", column_config=config,
                 alt="It has not run yet")  # fmt: skip
    if len(shown) < len(runs):
        st.caption(f"The last {number(len(shown))} of {number(len(runs))} runs of equal steps.")


def steps_words(row: Row) -> str:
    """How many steps it ran in, and the way to the first and the last."""
    if not row["num_steps"]:
        return "none yet"
    ends = [
        f"[{word} {row[name]}]({url_state.link('scheduler', engine=row['engine'], step=row[name])})"
        for word, name in (("first", "first_step"), ("last", "last_step"))
    ]
    return f"{count(row['num_steps'], 'step')}, {', '.join(ends)}"

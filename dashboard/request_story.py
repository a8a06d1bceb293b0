"""The sentences that explain a request, and its figures."""

import streamlit as st

from vllm_obs.dashboard.figures import NOTHING, nanoseconds, number, seconds
from vllm_obs.dashboard.frame import escape, said
from vllm_obs.dashboard.request_rows import Row, ending_of


def story_panel(row: Row) -> None:
    """Draw them: the first sentence is where most of the time went."""
    sentences = row["explanation"]
    with st.container(border=True, key="request-story"):
        first, *rest = sentences or ["Nothing is known of its time yet."]
        st.markdown(f"#### {said(str(first))}")
        st.markdown("\n".join(f"- {said(str(sentence))}" for sentence in rest) or NOTHING)
        figures = figures_of(row)
        for column, (label, value) in zip(st.columns(len(figures)), figures.items(), strict=True):
            column.metric(label, value)


def figures_of(row: Row) -> dict[str, str]:
    """Label → figure; what has not happened is not 0."""
    cached = f"{number(row['num_cached_tokens'])} of {number(row['num_prompt_tokens'])}"
    return {
        "So far" if row["state"] != "ended" else "Took": nanoseconds(row["latency_ns"]),
        "First token": seconds(_first_token_seconds(row)),
        "Between tokens": seconds(between_tokens_seconds(row)),
        "Last token": _ago(row["last_token_age_seconds"]),
        "Output tokens": number(row["num_output_tokens"]),
        "Cached": cached,
        "Preempted": number(row["num_preemptions"]),
        "Ending": escape(ending_of(row) or NOTHING),
    }


def _ago(age: float | None) -> str:
    return NOTHING if age is None else f"{seconds(age)} ago"


def _first_token_seconds(row: Row) -> float | None:
    first = row["first_token_at"]
    return (first - row["received_at"]) / 1e9 if first else None


def between_tokens_seconds(row: Row) -> float | None:
    """The mean from one token to the next; None of fewer than two."""
    ended = row["ended"] or row
    num_gaps = row["num_output_tokens"] - 1
    length = ended["last_token_at"] - ended["first_token_at"]
    return length / num_gaps / 1e9 if num_gaps > 0 and length > 0 else None

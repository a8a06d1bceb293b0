"""Two requests beside one another: how long each was in each stage, and what makes the difference."""

from typing import Any

import streamlit as st

from vllm_obs.dashboard.figures import NS, nanoseconds
from vllm_obs.dashboard.frame import escape
from vllm_obs.dashboard.request_rows import Row
from vllm_obs.dashboard.request_waterfall import STAGE_WORDS

HEIGHT, ROW_HEIGHT = 323, 26
MAX_NAMED = 2


def difference_panel(row: Row, other: Row) -> None:
    """Draw the table of stages, and the sentence that says in which they differ."""
    with st.container(border=True, key="request-difference"):
        st.markdown(difference_words(row, other))
        st.dataframe(
            difference_columns(row, other),
            hide_index=True,
            height=HEIGHT,
            row_height=ROW_HEIGHT,
            key="difference",
            column_config={
                "this": st.column_config.NumberColumn("this one", format="%.4f s"),
                "other": st.column_config.NumberColumn("the other", format="%.4f s"),
                "more": st.column_config.NumberColumn("difference", format="%+.4f s"),
            },
        )


def difference_columns(row: Row, other: Row) -> dict[str, list[Any]]:
    """Stages that either was in, and the sum."""
    stages = [stage for stage in row["stage_ns"] if row["stage_ns"][stage] or other["stage_ns"][stage]]
    mine = [row["stage_ns"][stage] / NS for stage in stages]
    others = [other["stage_ns"][stage] / NS for stage in stages]
    return {
        "stage": [*stages, "sum"],
        "this": [*mine, sum(mine)],
        "other": [*others, sum(others)],
        "more": [this - that for this, that in zip([*mine, sum(mine)], [*others, sum(others)], strict=True)],
    }


def difference_words(row: Row, other: Row) -> str:
    """In which stages it was longer, in which less."""
    more = {stage: row["stage_ns"][stage] - other["stage_ns"][stage] for stage in row["stage_ns"]}
    whole = sum(more.values())
    name = escape(other["external_id"] or other["request_id"])
    took = f"**{nanoseconds(abs(whole))} {'longer' if whole > 0 else 'less'}** than" if whole else "as long as"
    by_length = sorted(more, key=more.__getitem__)
    longer = _stages_words([stage for stage in reversed(by_length) if more[stage] > 0], more)
    less = _stages_words([stage for stage in by_length if more[stage] < 0], more)
    parts = [f"longer by {longer}"] if longer else []
    parts += [f"less by {less}"] if less else []
    return f"It took {took} {name}" + (f": {'; '.join(parts)}." if parts else ".")


def _stages_words(stages: list[str], more: dict[str, int]) -> str:
    """The most of them, with what happens there."""
    return ", ".join(
        f"{nanoseconds(abs(more[stage]))} of **{stage}** ({STAGE_WORDS[stage]})" for stage in stages[:MAX_NAMED]
    )

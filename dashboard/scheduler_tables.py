"""The tables of the scheduler page: why requests wait, the line, who runs, and who was in one step."""

from html import escape
from typing import Any, NamedTuple

import streamlit as st

from vllm_obs.dashboard import url_state
from vllm_obs.dashboard.figures import count, number
from vllm_obs.dashboard.palette import BLOCK_COLOURS, STAGE_COLOURS
from vllm_obs.dashboard.scheduler_words import execution_words, reason_words

Row = dict[str, Any]
Columns = dict[str, list[Any]]

QUEUE_HEIGHT = 290
RUNNING_HEIGHT = 325
MAX_REASONS = 6
CHOSEN = "scheduler-chosen"
"""Where a chosen row's request waits for the page to be run again."""
NS_PER_MS = 1e6

_REQUEST = st.column_config.TextColumn("request", width=210, help="Choose a row to follow the request")


def reason_bars(by_reason: dict[str, int], num_counted: int, num_waiting: int) -> None:
    """How many wait for what, the most common first; one element, however many reasons there are."""
    rows = "".join(_reason_bar(reason, num, num_counted) for reason, num in list(by_reason.items())[:MAX_REASONS])
    more = f"counted over the first {number(num_counted)} of the line" if num_counted < num_waiting else ""
    st.html(
        f'<div class="tabular" style="min-height:{QUEUE_HEIGHT - 100}px" role="img"'
        f' aria-label="Waiting requests by reason">{rows}<div style="opacity:.7">{more}</div></div>'
    )


def _reason_bar(reason: str, num: int, num_counted: int) -> str:
    share = 100 * num / num_counted if num_counted else 0
    bar = f"width:{share:.1f}%;height:8px;border-radius:4px;background:{STAGE_COLOURS['queue']}"
    return (
        f'<div style="margin-bottom:10px"><div style="display:flex;justify-content:space-between">'
        f"<span><b>{escape(reason)}</b> <span style='opacity:.75'>{escape(reason_words(reason))}</span></span>"
        f"<b>{number(num)}</b></div>"
        f'<div style="border-radius:4px;background:{BLOCK_COLOURS["free"]}"><div style="{bar}"></div></div></div>'
    )


def queue_table(rows: list[Row], num_waiting: int, step: int | None = None) -> None:
    """Who waits, in the order in which the scheduler looks at them; now, or when `step` was planned."""
    columns: Columns = {
        "place": [row["place"] + 1 for row in rows],
        "request": [row["request_id"] for row in rows],
        "reason": [row["reason"] for row in rows],
        "seconds": [row["seconds"] for row in rows],
        "prompt": [row["num_prompt_tokens"] for row in rows],
        "state": [row["state"] for row in rows],
    }
    config = {
        "place": st.column_config.NumberColumn("place", width=50),
        "request": _REQUEST,
        "reason": st.column_config.TextColumn("waits because of", width=125),
        "seconds": st.column_config.NumberColumn("waiting for", format="%.2f s", width=80),
        "prompt": st.column_config.NumberColumn("prompt tokens", width=100),
        "state": st.column_config.TextColumn("state", width=85),
    }
    _table(columns, config, _Look("queue", QUEUE_HEIGHT, "Nobody waits", step))
    shown = f"the first {number(len(rows))} of {number(num_waiting)}" if len(rows) < num_waiting else ""
    st.caption(f"{shown or count(num_waiting, 'request')} in the line")


def running_table(rows: list[Row], num_running: int) -> None:
    """Who runs and how far each is."""
    columns: Columns = {
        "request": [row["request_id"] for row in rows],
        "stage": [row["stage"] for row in rows],
        "share": [_computed_share(row) for row in rows],
        "computed": [row["num_computed_tokens"] for row in rows],
        "total": [row["num_prompt_tokens"] + row["num_output_tokens"] for row in rows],
        "scheduled": [row["num_scheduled_tokens"] for row in rows],
        "blocks": [row["num_blocks"] for row in rows],
        "age": [row["last_token_age_seconds"] for row in rows],
        "output": [row["num_output_tokens"] for row in rows],
        "cached": [row["num_cached_tokens"] for row in rows],
        "preemptions": [row["num_preemptions"] for row in rows],
    }
    config = {
        "request": _REQUEST,
        "stage": st.column_config.TextColumn("stage", width="small"),
        "share": st.column_config.ProgressColumn(
            "computed share", format="percent", min_value=0, max_value=1, width="small"
        ),
        "computed": st.column_config.NumberColumn("computed", help="Tokens whose keys and values are there"),
        "total": st.column_config.NumberColumn("total", help="Prompt and output tokens so far"),
        "scheduled": st.column_config.NumberColumn("this step", help="Tokens in the newest step"),
        "blocks": st.column_config.NumberColumn("KV blocks"),
        "age": st.column_config.NumberColumn("last token", format="%.2f s ago"),
        "output": st.column_config.NumberColumn("output"),
        "cached": st.column_config.NumberColumn("cached", help="Prompt tokens found in the prefix cache"),
        "preemptions": st.column_config.NumberColumn("preempted", help="How often"),
    }
    _table(columns, config, _Look("running", RUNNING_HEIGHT, "Nobody runs"))
    shown = f"the first {number(len(rows))} of {number(num_running)}" if len(rows) < num_running else ""
    st.caption(f"{shown or count(num_running, 'request')} running")


def _computed_share(row: Row) -> float:
    total = row["num_prompt_tokens"] + row["num_output_tokens"]
    return min(1.0, row["num_computed_tokens"] / total) if total else 0.0


def batch_table(step: Row, number_of_step: int) -> None:
    """Who was in one step, in the order of its rows."""
    planned, answered = step["planned"], step["answered"]
    new = dict(zip(answered["request_ids"], answered["num_new_tokens"], strict=False)) if answered else {}
    cached = dict(zip(planned["admitted_ids"], planned["admitted_cached_tokens"], strict=False))
    ids = planned["request_ids"]
    columns: Columns = {
        "request": ids,
        "scheduled": planned["num_scheduled_tokens"],
        "before": planned["num_computed_tokens"],
        "cached": [cached.get(name) for name in ids],
        "blocks": planned["num_new_blocks"],
        "new": [new.get(name) for name in ids],
        "change": [_change(planned, name) for name in ids],
    }
    config = {
        "request": _REQUEST,
        "scheduled": st.column_config.NumberColumn("tokens", help="Computed in this step"),
        "before": st.column_config.NumberColumn("computed before"),
        "cached": st.column_config.NumberColumn("from the cache", help="Of one that came in with this step"),
        "blocks": st.column_config.NumberColumn("new KV blocks"),
        "new": st.column_config.NumberColumn("new tokens"),
        "change": st.column_config.TextColumn("change"),
    }
    _table(columns, config, _Look("batch", RUNNING_HEIGHT, "It ran nobody", number_of_step))


def _change(planned: Row, request_id: str) -> str:
    if request_id in planned["resumed_ids"]:
        return "came back"
    return "came in" if request_id in planned["admitted_ids"] else ""


def rank_table(workers: list[Row]) -> None:
    """What each rank did in one step, in milliseconds."""
    rows = sorted(workers, key=lambda worker: int(worker["rank"]))

    def lengths(end: str, begin: str) -> list[float]:
        return [(row[end] - row[begin]) / NS_PER_MS for row in rows]

    columns: Columns = {
        "rank": [row["rank"] for row in rows],
        "tokens": [row["num_tokens"] for row in rows],
        "prepare": lengths("prepared_at", "received_at"),
        "forward": lengths("forwarded_at", "prepared_at"),
        "wait": lengths("sample_begun_at", "forwarded_at"),
        "sample": lengths("sampled_at", "sample_begun_at"),
        "ran": [execution_words(row) for row in rows],
    }
    length = st.column_config.NumberColumn(format="%.3f ms")
    config = dict.fromkeys(("prepare", "forward", "sample"), length) | {
        "wait": st.column_config.NumberColumn("before sampling", format="%.3f ms")
    }
    st.dataframe(columns, hide_index=True, height=142, key="ranks", column_config=config, placeholder="–")


class _Look(NamedTuple):
    """A table's key, its height, what is said where it is empty, and the step it is of (None: now)."""

    key: str
    height: int
    alt: str
    step: int | None = None


def _table(columns: Columns, config: dict[str, Any], look: _Look) -> None:
    """A table in which choosing a row follows its request.

    The rows may be others by the time the choice arrives: it is of those that were shown before, of the same step.
    Who is followed and the step are part of the key, so that no row stays chosen while the rows move on.
    """
    followed, ids = url_state.text("request"), columns["request"]
    shown_key = f"shown:{look.key}"
    step_before, shown_before = st.session_state.get(shown_key, (look.step, ids))
    st.session_state[shown_key] = (look.step, ids)
    if step_before != look.step:
        shown_before = ids
    chosen = st.dataframe(
        columns,
        hide_index=True,
        height=look.height,
        key=f"{look.key}:{look.step}:{followed}",
        column_config=config,
        on_select="rerun",
        selection_mode="single-row",
        placeholder="–",
        alt=look.alt,
    )
    if (name := chosen_name(chosen["selection"]["rows"], shown_before)) and name != followed:
        # Written into the address here, it would be lost with the rerun.
        st.session_state[CHOSEN] = name
        st.rerun()


def chosen_name(rows: list[int], shown: list[str]) -> str:
    """The request in the chosen row, empty where none is chosen or it is there no longer."""
    return shown[rows[0]] if rows and rows[0] < len(shown) else ""


def take_chosen() -> None:
    """Follow the request whose row was chosen before this run of the page."""
    if name := st.session_state.pop(CHOSEN, None):
        url_state.put(request=name)

"""The list of requests: a page of rows with of how many it is, who is frozen, and what was refused."""

from typing import Any

import streamlit as st

from vllm_obs.dashboard import url_state
from vllm_obs.dashboard.figures import count, number, seconds
from vllm_obs.dashboard.frame import escape, note_trouble
from vllm_obs.dashboard.request_filters import Filters, filters_of_address
from vllm_obs.dashboard.request_rows import Row, refused_table, request_table
from vllm_obs.dashboard.source import current
from vllm_obs.telemetry.ended_sequences import MAX_ENDED_AGE_NS, MAX_ENDED_SEQUENCES

TABLE_HEIGHT = 530
REFUSED_HEIGHT = 215
FROZEN_SECONDS = 2.0
"""One that runs and has had no token for so long is spoken of."""
KEPT_WORDS = (
    f"Of those that ended the last {number(MAX_ENDED_SEQUENCES)} are kept, "
    f"for {MAX_ENDED_AGE_NS // (60 * 10**9)} minutes."
)
NOTHING_YET: Row = {"requests": [], "cursor": None, "refused": [], "num_live": 0, "num_ended": 0}


def list_panel() -> None:
    """Draw the list as the address asks for it."""
    filters = filters_of_address()
    reading = current().get("/inspect/requests", **filters.query())
    note_trouble(reading)
    content = reading.content or NOTHING_YET
    _counts(content, filters)
    st.markdown(frozen_words(content["requests"]))
    request_table(content["requests"], "requests", TABLE_HEIGHT)
    with st.container(border=True, key="refused"):
        st.markdown(refused_words(content, filters))
        refused_table(content["refused"], "refused-table", REFUSED_HEIGHT)


def _counts(content: Row, filters: Filters) -> None:
    with st.container(horizontal=True, vertical_alignment="center", key="request-pages"):
        st.markdown(counted_words(content, filters))
        st.button("First page", key="page-first", disabled=not filters.cursor, on_click=url_state.put,
                  kwargs={"cursor": None})  # fmt: skip
        st.button("Next page ›", key="page-next", disabled=not content["cursor"], on_click=url_state.put,
                  kwargs={"cursor": content["cursor"]})  # fmt: skip


def counted_words(content: Row, filters: Filters) -> str:
    """Of how many this is, so that nothing is left out in silence."""
    num_shown = len(content["requests"])
    begun = int(content.get("num_before", 0))
    num_found = int(content.get("num_found", begun + num_shown))
    kept = f"{number(content['num_live'])} live and {number(content['num_ended'])} ended are known"
    if not num_shown:
        what = "No request fits these filters" if filters.is_any else "Nobody has asked anything yet"
        return f"**{what}.** {kept}. {KEPT_WORDS}"
    if not begun and num_shown == num_found:
        shown = f"{count(num_found, 'request')}"
    else:
        shown = f"{number(begun + 1)} to {number(begun + num_shown)} of {number(num_found)} requests"
    least = content.get("min_seconds", 0)
    slow = f" that took at least {seconds(least)}" if least else ""
    return f"**{shown}**{slow}, newest first; {kept}. Choose one to see where its time went."


def frozen_words(rows: list[Row]) -> str:
    """Which of these run without a token, the longest first."""
    frozen = [row for row in rows if _is_frozen(row)]
    if not frozen:
        return f"None of these runs without a token for {seconds(FROZEN_SECONDS)} or more."
    worst = max(frozen, key=lambda row: float(row["last_token_age_seconds"]))
    age = seconds(worst["last_token_age_seconds"])
    link = url_state.link("requests", request=worst["request_id"])
    who = "runs" if len(frozen) == 1 else "run"
    return (
        f":red-badge[frozen] **{count(len(frozen), 'request')}** {who} and had no token for "
        f"{seconds(FROZEN_SECONDS)} or more: [{escape(worst['request_id'])}]({link}) for {age}."
    )


def _is_frozen(row: Row) -> bool:
    age: Any = row["last_token_age_seconds"]
    return row["state"] == "running" and age is not None and age >= FROZEN_SECONDS


def refused_words(content: Row, filters: Filters) -> str:
    """How many HTTP requests were answered with an error, by status."""
    rows = content["refused"]
    num = int(content.get("num_refused", len(rows)))
    title = "**HTTP requests that were answered with an error**"
    if not rows:
        elsewhere = filters.state not in ("", "ended") or filters.account or filters.cursor
        return f"{title}: " + ("not shown with these filters." if elsewhere else "none.")
    by_status: dict[int, int] = {}
    for row in rows:
        by_status[row["status"]] = by_status.get(row["status"], 0) + 1
    counts = ", ".join(f"{number(amount)} × {status}" for status, amount in sorted(by_status.items()))
    newest = f"the newest {number(len(rows))} of {number(num)}" if num > len(rows) else number(num)
    return f"{title}: {newest} ({counts}); 499 is a client that left."

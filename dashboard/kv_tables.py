"""The table of those who hold most blocks; a chosen row is followed on the map."""

from typing import Any

import streamlit as st

from vllm_obs.dashboard import url_state
from vllm_obs.dashboard.figures import count, number
from vllm_obs.dashboard.kv_levels import summary_reading
from vllm_obs.dashboard.scheduler_tables import CHOSEN, chosen_name

HEIGHT = 330
SHOWN_KEY = "shown:kv-holders"
Row = dict[str, Any]


def holders_panel() -> None:
    """Who holds most, now or after the step that is looked at.

    The rows may be others by the time a choice arrives: it is of those that were shown before. Who is followed is
    part of the key, so that no row stays chosen while the rows move on.
    """
    summary: Row = summary_reading().content or {}
    rows: list[Row] = summary.get("holders", [])
    num_holders = summary.get("num_holders", 0)
    shown = f"the first {number(len(rows))} of {number(num_holders)}" if len(rows) < num_holders else ""
    st.markdown(f"**Who holds most** · {shown or count(num_holders, 'request')}")
    columns, followed = holder_columns(rows), url_state.text("request")
    shown_before: list[str] = st.session_state.get(SHOWN_KEY, columns["request"])
    st.session_state[SHOWN_KEY] = columns["request"]
    chosen = st.dataframe(
        columns,
        column_config=_CONFIG,
        hide_index=True,
        height=HEIGHT,
        key=f"kv-holders:{followed}",
        on_select="rerun",
        selection_mode="single-row",
        placeholder="–",
        alt="Who holds most blocks",
    )
    st.caption("Choose a row to follow the request." if rows else "Nobody holds a block.")
    if (name := chosen_name(chosen["selection"]["rows"], shown_before)) and name != followed:
        # Written into the address here, it would be lost with the rerun.
        st.session_state[CHOSEN] = name
        st.rerun()


def holder_columns(rows: list[Row]) -> dict[str, list[Any]]:
    """The table's columns; shares are of all blocks."""
    return {
        "request": [row["request_id"] for row in rows],
        "blocks": [row["num_blocks"] for row in rows],
        "share": [row["share"] for row in rows],
        "tokens": [row["num_tokens"] for row in rows],
        "empty": [row["num_empty_slots"] for row in rows],
        "shared": [row["num_shared_blocks"] for row in rows],
        "with": [sharer_words(row) for row in rows],
        "age": [row["age_seconds"] for row in rows],
    }


def sharer_words(row: Row) -> str:
    """With whom it shares: the first, and how many more there are."""
    if not row["num_sharers"]:
        return ""
    more = row["num_sharers"] - 1
    return f"{row['sharers'][0]}{f' and {more} more' if more else ''}"


_CONFIG: dict[str, Any] = {
    "request": st.column_config.TextColumn("request", width="medium"),
    "blocks": st.column_config.NumberColumn("blocks", width="small"),
    "share": st.column_config.ProgressColumn("of all blocks", format="percent", min_value=0, max_value=1),
    "tokens": st.column_config.NumberColumn("tokens in them", help="Computed, or given room for"),
    "empty": st.column_config.NumberColumn("empty room", help="Tokens that still fit into its last block"),
    "shared": st.column_config.NumberColumn("shared", help="Blocks that others hold as well"),
    "with": st.column_config.TextColumn("shared with", width="medium"),
    "age": st.column_config.NumberColumn("age", format="%.1f s", help="Since the engine took it"),
}

"""The followed request's blocks in words: what it found in the prefix cache, why not more, and who shares it."""

from collections import Counter
from typing import Any
from urllib.parse import quote

import streamlit as st

from vllm_obs.dashboard import url_state
from vllm_obs.dashboard.figures import count, number, share
from vllm_obs.dashboard.frame import code, escape, said
from vllm_obs.dashboard.source import current

HEIGHT = 165
MAX_SHARERS = 4
Row = dict[str, Any]

STOPPED_WORDS = {
    "all_found": ("all found", "green"),
    "too_short": ("too short", "gray"),
    "evicted": ("evicted", "red"),
    "computed_at_once": ("computed at once", "orange"),
    "not_computed_yet": ("being computed", "blue"),
    "never_seen": ("new content", "gray"),
    "disabled": ("caching is off", "gray"),
    "not_admitted": ("not admitted yet", "gray"),
    "unknown": ("not known", "gray"),
}
"""Why no more was found → word and colour of its badge."""

NOBODY = (
    "**No request is followed.** Click a block on the map, or a row of the table below: here it is told what the "
    "request found in the prefix cache, who had made it, and why it was not more."
)


def request_panel() -> None:
    """The request that the address names, or how to choose one."""
    name = url_state.text("request")
    with st.container(border=True, height=HEIGHT if name else "content", key="kv-request"):
        if not name:
            st.markdown(NOBODY)
            return
        reading = current().get(f"/inspect/requests/{quote(name, safe='')}/cache", step=url_state.paused_step())
        if not reading.is_there:
            st.markdown(f"**{code(name)}**\n\n{said(reading.trouble)}")
            return
        found, held = st.columns([3, 2], gap="medium")
        row = newest(reading.content["sequences"])
        with found:
            st.markdown(found_words(row))
        with held:
            st.markdown(held_words(row))


def newest(sequences: list[Row]) -> Row:
    """The newest sequence of this engine that has blocks; else the newest."""
    engine = url_state.engine()
    with_blocks = [row for row in sequences if row["block_ids"] and row["engine"] == engine]
    return (with_blocks or sequences)[0]


def found_words(row: Row) -> str:
    """What it found in the prefix cache and why it stopped there."""
    prefix = row["prefix"]
    if prefix is None:
        return "**Prefix cache** — no engine has it yet."
    word, colour = STOPPED_WORDS.get(prefix["stopped"], ("not known", "gray"))
    of = "" if prefix["num_findable_blocks"] is None else f" of {number(prefix['num_findable_blocks'])}"
    lines = [
        f"**Prefix cache: {number(prefix['num_hit_blocks'])}{of} blocks found** :{colour}-badge[{word}]",
        said(prefix["says"]),
    ]
    makers = [maker for maker in prefix["makers"] if maker["request_id"]]
    if len(makers) > 1:
        lines.append("Made by " + ", ".join(_maker(maker) for maker in makers) + ".")
    return "\n\n".join(lines)


def _maker(maker: Row) -> str:
    first = maker["first_block"] + 1
    last = maker["first_block"] + maker["num_blocks"]
    which = f"block {first}" if first == last else f"blocks {first} to {last}"
    return f"{code(maker['request_id'])} ({which}, step {number(maker['first_step'])})"


def held_words(row: Row) -> str:
    """What it holds and with whom."""
    block_ids = row["block_ids"] or []
    link = url_state.link("requests", request=row["request_id"])
    lines = [f"**{code(row['request_id'])}** · {escape(row['state'])} · [its request]({link})"]
    if not block_ids:
        return "\n\n".join([*lines, "It holds no blocks."])
    held = "holds" if row.get("is_held", True) else "held at its end"
    tokens = f" with {count(row['num_tokens'], 'token')}" if row["num_tokens"] is not None else ""
    lines.append(f"It {held} {count(len(block_ids), 'block')}{tokens}.")
    lines.append(sharing_words(row))
    return "\n\n".join(lines)


def sharing_words(row: Row) -> str:
    """With whom it shares how many blocks."""
    num_shared = sum(num > 1 for num in row.get("num_refs", ()))
    if not row.get("is_held", True) or not num_shared:
        return "It shares none of them."
    by_sharer = Counter(place for places in row["others"] for place in places)
    named = [f"{code(row['sharers'][place])} ({num})" for place, num in by_sharer.most_common(MAX_SHARERS)]
    more = len(row["sharers"]) - len(named)
    others = ", ".join(named) + (f" and {more} more" if more > 0 else "")
    part = share(num_shared / len(row["block_ids"]))
    return f"It shares {count(num_shared, 'block')} ({part}) with {others}."

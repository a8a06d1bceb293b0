"""The KV page's figures: blocks by state, sharing, empty room, and what the prefix cache finds and loses."""

from typing import Any, NamedTuple

import streamlit as st

from vllm_obs.dashboard import url_state
from vllm_obs.dashboard.drawing import Part, legend, stacked_bar
from vllm_obs.dashboard.figures import NOTHING, count, known, number, share
from vllm_obs.dashboard.frame import note_trouble
from vllm_obs.dashboard.palette import BLOCK_COLOURS
from vllm_obs.dashboard.source import Reading, current

TREND_SECONDS = 5
CARD_HEIGHT = 140
Row = dict[str, Any]


def summary_reading() -> Reading:
    """The sums of the engine's blocks, now or as of the step that is looked at."""
    return current().get("/inspect/blocks/summary", engine=url_state.engine(), step=url_state.paused_step())


def levels_panel() -> None:
    """Blocks by state as a bar and in numbers; sharing; empty room; hit rate."""
    reading = summary_reading()
    note_trouble(reading)
    summary: Row = reading.content or {}
    bar, sharing, empty, hits = st.columns([5, 2, 2, 2])
    with bar, st.container(border=True, height=CARD_HEIGHT):
        st.html(_levels(summary))
    with sharing:
        _sharing(summary.get("sharing", {}))
    with empty:
        _fragmentation(summary.get("fragmentation", {}), summary.get("block_size", 0))
    with hits:
        _hit_rate()


def level_parts(levels: dict[str, int]) -> list[Part]:
    """Active, cached and free blocks, each with its share of all."""
    total = sum(levels.values())
    return [
        Part(word, num / total if total else 0.0, BLOCK_COLOURS[word], _level_words(word, num, total))
        for word in BLOCK_COLOURS
        for num in (levels.get(f"num_{word}", 0),)
    ]


def _level_words(word: str, num: int, total: int) -> str:
    return f"{word} {number(num)} ({share(num / total) if total else NOTHING})"


def _levels(summary: Row) -> str:
    levels = summary.get("levels", {})
    parts = level_parts(levels)
    size, num_blocks = summary.get("block_size", 0), summary.get("num_blocks", 0)
    tokens = f", {number(num_blocks * size)} tokens" if size else ""
    when = f"after step {number(summary['step'])}" if "step" in summary else ""
    exact = "" if summary.get("is_exact", True) else " · not exact: records were lost and it is being mended"
    of = f" of {size}" if size else ""
    return (
        f'<div style="display:flex;justify-content:space-between;margin-bottom:6px">'
        f"<b>{count(num_blocks, 'block')}{of}{tokens}</b>"
        f'<span style="opacity:.75" class="tabular">{when}{exact}</span></div>'
        f"{stacked_bar(parts, 'Blocks by state', 26)}{legend(parts)}{_room(summary)}"
    )


def _room(summary: Row) -> str:
    """Who holds the active blocks, and for how much there is room."""
    if "num_holders" not in summary:
        return ""
    levels, size = summary["levels"], summary["block_size"]
    num_left = levels["num_cached"] + levels["num_free"]
    hold = "holds" if summary["num_holders"] == 1 else "hold"
    num_free = levels["num_free"] * size
    return (
        f'<div class="tabular" style="opacity:.75;font-size:0.86em;margin-top:4px">'
        f"{count(summary['num_holders'], 'request')} {hold} blocks. There is room for "
        f"{number(num_left * size)} more tokens, {number(num_free)} of them without evicting.</div>"
    )


def _sharing(sharing: Row) -> None:
    st.metric(
        "Saved by sharing",
        number(sharing.get("num_saved_blocks")),
        border=True,
        height=CARD_HEIGHT,
        delta=sharing_words(sharing),
        delta_color="off",
        delta_arrow="off",
        help="Blocks that would be needed more if nobody shared any: all references to a block but one.",
    )


def sharing_words(sharing: Row) -> str:
    """How many blocks are shared, and by how many at most."""
    if not sharing:
        return NOTHING
    if not sharing["num_shared_blocks"]:
        return "no block is shared"
    return f"{count(sharing['num_shared_blocks'], 'block')}, up to {number(sharing['max_refs'])} holders"


def _fragmentation(fragmentation: Row, block_size: int) -> None:
    empty = fragmentation.get("num_empty_slots")
    expected = f" Of blocks of {block_size} it is {block_size / 2:g} tokens a request on average."
    st.metric(
        "Empty room in held blocks",
        share(fragmentation.get("share")),
        border=True,
        height=CARD_HEIGHT,
        delta=f"{number(empty)} of {number(fragmentation['num_slots'])} tokens" if empty is not None else NOTHING,
        delta_color="off",
        delta_arrow="off",
        help="Room in last blocks that no token fills yet, of all room in blocks that are held."
        + (expected if block_size else ""),
    )


def _hit_rate() -> None:
    reading = current().get("/inspect/blocks/trend", engine=url_state.engine(), every=TREND_SECONDS)
    trend: Row = reading.content or {}
    last: Row = trend.get("last_minute", {})
    queried = last.get("num_queried_tokens")
    st.metric(
        "Prompt tokens found, 1 min",
        share(last.get("hit_rate")),
        border=True,
        height=CARD_HEIGHT,
        delta=f"{number(last['num_found_tokens'])} of {number(queried)}" if queried else "nobody was admitted",
        delta_color="off",
        delta_arrow="off",
        chart_data=known(trend.get("hit_rate", [])),
        help="Prompt tokens that the prefix cache had, of all of the sequences that were admitted in the last "
        "minute of now; the line is the last five minutes.",
    )


class Flow(NamedTuple):
    """A sum of the trend; `name` is the Observer's."""

    name: str
    title: str
    help: str


FLOWS = (
    Flow("num_allocated", "Handed out", "Empty blocks given to sequences, without those found in the cache."),
    Flow("num_hit_blocks", "Found in the cache", "Blocks that sequences were given with their content."),
    Flow("num_cached_in", "Entered the cache", "Blocks that were filled and can be found from then on."),
    Flow("num_evicted", "Evicted", "Blocks that lost their content to somebody who needed the room."),
)


def trend_panel() -> None:
    """What went in and out in the last minute, over five minutes."""
    reading = current().get("/inspect/blocks/trend", engine=url_state.engine(), every=TREND_SECONDS)
    trend: Row = reading.content or {}
    last: Row = trend.get("last_minute", {})
    for column, flow in zip(st.columns(len(FLOWS)), FLOWS, strict=True):
        with column:
            st.metric(
                f"Blocks {flow.title[0].lower()}{flow.title[1:]}, 1 min",
                number(last.get(flow.name)),
                border=True,
                height=CARD_HEIGHT,
                chart_data=known(trend.get(flow.name, [])),
                chart_type="bar",
                help=f"{flow.help} A bar is {TREND_SECONDS} s of the last five minutes.",
            )
    st.caption(turnover_words(last, summary_reading().content or {}))


def turnover_words(last: Row, summary: Row) -> str:
    """How long cached content lasts at the rate of the last minute."""
    evicted, num_cached = last.get("num_evicted"), (summary.get("levels") or {}).get("num_cached", 0)
    if evicted is None:
        return "Nothing was planned in the last minute."
    if not evicted:
        return "Nothing was evicted in the last minute: what is cached stays."
    per_second = evicted / 60
    return (
        f"{number(per_second)} blocks are evicted a second. {count(num_cached, 'cached block')} that nobody holds "
        f"last about {number(num_cached / per_second)} s at that rate."
    )

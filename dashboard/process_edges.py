"""The edges of the process tree in words: what is on its way, and how long the last of it took."""

from collections.abc import Iterable
from typing import Any

from vllm_obs.dashboard.figures import NOTHING, count, seconds

BACKLOG_SECONDS = 1.0
"""A request that no core has taken for so long is waiting, not on its way."""

Row = dict[str, Any]


def request_words(edges: Row, engine: str) -> tuple[str, bool]:
    """Down to a core; and whether somebody waits there too long."""
    untaken, row = edges["untaken"], engine_row(edges, engine)
    oldest = untaken["oldest_seconds"]
    by_whom = " by any engine" if len(edges["engines"]) > 1 else ""
    waiting = f"{count(untaken['num'], 'request')} not taken yet{by_whom}"
    waiting = waiting if untaken["num"] else "none waits to be taken"
    if oldest is not None:
        waiting += f", the oldest sent {seconds(oldest)} ago"
    if not row["requests"]["num"]:
        return f"{waiting} · none taken in the last {edges['window_seconds']} s", (oldest or 0) > BACKLOG_SECONDS
    behind = row["requests_behind_a_step"]["p50_seconds"]
    part = f", {seconds(behind)} of it until a step was over" if behind else ""
    return f"{waiting} · on the way for {delay(row['requests'])}{part}", (oldest or 0) > BACKLOG_SECONDS


def output_words(edges: Row, engine: str) -> str:
    """Back to the API servers, each by its number where there are several."""
    rows = engine_row(edges, engine)["outputs"]
    queued = {server["client_index"]: server["num_queued_deltas"] for server in edges["servers"]}
    told = [_outputs(row, queued.get(row["client_index"]), is_named=len(rows) > 1) for row in rows]
    return " · ".join(told) or f"none in the last {edges['window_seconds']} s"


def _outputs(row: Row, num_queued: int | None, is_named: bool) -> str:
    name = f"server {row['client_index']}: " if is_named else ""
    taken, made = delay(row["taken"]), delay(row["made"])
    return f"{name}taken after {taken}, made into text in {made}, {_deltas(num_queued)}"


def plan_words(edges: Row, engine: str) -> str:
    """Down to the ranks: how many steps are under way, and which rank gets its plan last."""
    row = engine_row(edges, engine)
    head = f"{count(row['num_steps_in_flight'], 'step')} under way"
    timed = [rank for rank in row["ranks"] if rank["plans"]["num"]]
    if not timed:
        return f"{head} · no plan in the last {edges['window_seconds']} s"
    last = max(timed, key=lambda rank: rank["plans"]["p50_seconds"])
    which = f" (rank {last['rank']}, the last of {len(timed)})" if len(timed) > 1 else ""
    return f"{head} · plans reach the {'ranks' if len(timed) > 1 else 'rank'} after {delay(last['plans'])}{which}"


def rank_words(edges: Row, engine: str, rank: int | None) -> tuple[str, str]:
    """The wire of one rank: its plans down, and its answers up."""
    for row in engine_row(edges, engine)["ranks"]:
        if row["rank"] == rank:
            return f"plans {delay(row['plans'])}", f"answers {delay(row['answers'])}"
    return f"plans {NOTHING}", f"answers {NOTHING}"


def delay(row: Row) -> str:
    """What is typical, and what is slow."""
    if not row["num"]:
        return NOTHING
    return f"{seconds(row['p50_seconds'])} (p99 {seconds(row['p99_seconds'])})"


def engine_row(edges: Row, engine: str) -> Row:
    """An engine's edges; empty ones where nothing is known of it."""
    rows: Iterable[Row] = edges["engines"]
    return next((row for row in rows if row["engine"] == engine), _NO_ENGINE)


def _deltas(num: int | None) -> str:
    return f"{NOTHING} deltas queued" if num is None else f"{count(num, 'delta')} queued for clients"


_NO_DELAY: Row = {"num": 0, "p50_seconds": None, "p99_seconds": None}
_NO_ENGINE: Row = {
    "num_steps_in_flight": 0,
    "requests": _NO_DELAY,
    "requests_behind_a_step": _NO_DELAY,
    "ranks": [],
    "outputs": [],
}
NO_EDGES: Row = {
    "window_seconds": 10,
    "untaken": {"num": 0, "oldest_seconds": None},
    "engines": [],
    "servers": [],
}
"""Where nobody told."""

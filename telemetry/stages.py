"""The stages of a sequence's life, and the intervals of time that a ledger is made of."""

from collections.abc import Iterable
from typing import NamedTuple

STAGES: tuple[str, ...] = (
    "receive",
    "render",
    "tokenize",
    "submit",
    "queue",
    "prefill",
    "decode",
    "preempted",
    "recompute",
    "stalled",
    "return",
    "detokenize",
    "deliver",
)
"""Every stage, in the order in which a sequence first comes to it. They partition its wall time."""

WAIT_STAGES = frozenset({"queue", "preempted", "stalled"})
"""Stages in which a sequence waits for the scheduler; their intervals have a reason."""

MAX_INTERVALS = 2048
"""A ledger that grows beyond this has its older half folded."""

FOLD_CHUNK = 64
"""So many neighbouring intervals are folded into one for each stage and reason."""


class Interval(NamedTuple):
    """A sequence was in `stage` from `begun_at` to `ended_at` (monotonic ns).

    Consecutive intervals of a ledger touch. `reason` says why it waited. Outside `WAIT_STAGES` only that part of
    `submit` has one in which the core could not take it, being inside a step.
    """

    stage: str
    begun_at: int
    ended_at: int
    reason: str

    @property
    def num_ns(self) -> int:
        """How long it lasted; negative only where a record is wrong."""
        return self.ended_at - self.begun_at


def append_interval(intervals: list[Interval], interval: Interval) -> None:
    """Add what follows: one that lasted no time is left out, one like the last is merged into it."""
    if interval.begun_at == interval.ended_at:
        return
    if intervals and _continues(intervals[-1], interval):
        intervals[-1] = intervals[-1]._replace(ended_at=interval.ended_at)
        return
    intervals.append(interval)
    if len(intervals) > MAX_INTERVALS:
        fold_older(intervals)


def _continues(last: Interval, interval: Interval) -> bool:
    if (last.stage, last.reason, last.ended_at) != (interval.stage, interval.reason, interval.begun_at):
        return False
    # A negative interval is evidence of a fault, which merging would hide.
    return last.num_ns > 0 and interval.num_ns > 0


def fold_older(intervals: list[Interval]) -> None:
    """Make the older half of a ledger shorter: a chunk of neighbours becomes one interval a stage and reason.

    The sums by stage and by reason stay exact and the intervals still touch; within a chunk the order and the
    moments are given up.
    """
    num_folded = len(intervals) // 2 // FOLD_CHUNK * FOLD_CHUNK
    folded: list[Interval] = []
    for begin in range(0, num_folded, FOLD_CHUNK):
        folded += _folded(intervals[begin : begin + FOLD_CHUNK])
    intervals[:num_folded] = folded


def _folded(chunk: list[Interval]) -> list[Interval]:
    lengths: dict[tuple[str, str], int] = {}
    for interval in chunk:
        key = (interval.stage, interval.reason)
        lengths[key] = lengths.get(key, 0) + interval.num_ns
    at = chunk[0].begun_at
    folded = []
    for (stage, reason), num_ns in lengths.items():
        folded.append(Interval(stage, at, at + num_ns, reason))
        at += num_ns
    return folded


def cut_intervals(intervals: list[Interval], at: int) -> None:
    """Drop everything after the moment, trimming the interval that it falls into."""
    while intervals and intervals[-1].begun_at >= at:
        intervals.pop()
    if intervals and intervals[-1].ended_at > at:
        intervals[-1] = intervals[-1]._replace(ended_at=at)


def ns_by_stage(intervals: Iterable[Interval]) -> dict[str, int]:
    """Nanoseconds of every stage, zeros included."""
    sums = dict.fromkeys(STAGES, 0)
    for stage, begun_at, ended_at, _ in intervals:
        sums[stage] += ended_at - begun_at
    return sums


def ns_by_reason(intervals: Iterable[Interval]) -> dict[str, int]:
    """Nanoseconds of waiting by reason; only reasons that occurred."""
    sums: dict[str, int] = {}
    for stage, begun_at, ended_at, reason in intervals:
        if reason or stage in WAIT_STAGES:
            sums[reason] = sums.get(reason, 0) + ended_at - begun_at
    return sums

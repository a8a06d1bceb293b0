"""Intervals merge, are cut and are folded without a nanosecond lost."""

from itertools import cycle, islice, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_obs.telemetry.stages import (
    MAX_INTERVALS,
    STAGES,
    Interval,
    append_interval,
    cut_intervals,
    ns_by_reason,
    ns_by_stage,
)


def test_what_lasted_no_time_is_left_out_and_what_goes_on_is_merged() -> None:
    intervals: list[Interval] = []
    for interval in (
        Interval("queue", 0, 5, "paused"),
        Interval("queue", 5, 5, "kv_blocks"),
        Interval("queue", 5, 9, "paused"),
        Interval("prefill", 9, 12, ""),
    ):
        append_interval(intervals, interval)
    assert intervals == [Interval("queue", 0, 9, "paused"), Interval("prefill", 9, 12, "")]


def test_a_negative_interval_stays_visible() -> None:
    intervals = [Interval("decode", 10, 5, "")]
    append_interval(intervals, Interval("decode", 5, 20, ""))
    assert [interval.num_ns for interval in intervals] == [-5, 15]


def test_a_cut_trims_the_interval_it_falls_into() -> None:
    intervals = [Interval("queue", 0, 9, "paused"), Interval("prefill", 9, 12, ""), Interval("decode", 12, 20, "")]
    cut_intervals(intervals, 12)
    assert [interval.ended_at for interval in intervals] == [9, 12]
    cut_intervals(intervals, 4)
    assert intervals == [Interval("queue", 0, 4, "paused")]


@settings(max_examples=20, deadline=None, database=None)
@given(st.lists(st.integers(1, 1000), min_size=1, max_size=50), st.integers(0, 2))
def test_folding_keeps_every_sum_and_leaves_no_gap(lengths: list[int], num_reasons: int) -> None:
    kinds = [("decode", "")] + [("stalled", reason) for reason in ("token_budget", "kv_blocks")[:num_reasons]]
    intervals: list[Interval] = []
    whole: list[Interval] = []
    at = 0
    for index, length in enumerate(islice(cycle(lengths), 2 * MAX_INTERVALS)):
        stage, reason = kinds[index % len(kinds)]
        interval = Interval(stage, at, at + length, reason)
        append_interval(intervals, interval)
        whole.append(interval)
        at += length
        assert len(intervals) <= MAX_INTERVALS
    assert ns_by_stage(intervals) == ns_by_stage(whole)
    assert ns_by_reason(intervals) == ns_by_reason(whole)
    assert all(before.ended_at == after.begun_at for before, after in pairwise(intervals))
    assert (intervals[0].begun_at, intervals[-1].ended_at) == (0, at)


def test_sums_name_every_stage() -> None:
    assert ns_by_stage([Interval("queue", 2, 9, "paused")]) == dict.fromkeys(STAGES, 0) | {"queue": 7}

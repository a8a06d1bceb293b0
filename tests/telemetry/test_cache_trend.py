"""What goes into the KV cache and out of it is counted second by second, with gaps where nothing was planned."""

import pytest
from fact_stream import ENGINE, FactStream

from vllm_obs.telemetry import cache_trend
from vllm_obs.telemetry.cache_trend import CacheTrend

S = 1_000_000_000


def seen(stream: FactStream) -> CacheTrend:
    trend = CacheTrend()
    for source, record in stream.facts:
        trend.record(source, record)
    return trend


def two_seconds() -> FactStream:
    """`a` computes 10 tokens in second 100; in second 102 `b` finds 8 of its 9."""
    stream = FactStream(now=100 * S)
    stream.describe()
    stream.submit("a", num_prompt_tokens=10)
    stream.step({"a": 10})
    stream.now = 102 * S
    stream.submit("b", num_prompt_tokens=9)
    stream.step({"b": 1}, cached={"b": 8})
    return stream


def test_seconds_are_counted_and_gaps_stay_gaps() -> None:
    columns = seen(two_seconds()).columns("0", 103 * S, 1)
    assert columns["begun_at"][-3:] == [100 * S, 101 * S, 102 * S]
    tail = {
        name: columns[name][-3:] for name in ("num_allocated", "num_hit_blocks", "num_cached_in", "num_evicted")
    }
    assert tail == {
        "num_allocated": [3, None, 1],
        "num_hit_blocks": [0, None, 2],
        "num_cached_in": [2, None, 0],
        "num_evicted": [0, None, 0],
    }
    assert columns["num_queried_tokens"][-3:] == [10, None, 9]
    assert columns["hit_rate"][-3:] == [0.0, None, 8 / 9]
    assert columns["num_active"][-3:] == [3, None, 4]


def test_last_minute_is_summed() -> None:
    last = seen(two_seconds()).columns("0", 103 * S, 5)["last_minute"]
    assert last == {
        "num_allocated": 4,
        "num_hit_blocks": 2,
        "num_cached_in": 2,
        "num_evicted": 0,
        "num_queried_tokens": 19,
        "num_found_tokens": 8,
        "hit_rate": 8 / 19,
    }
    nothing = seen(two_seconds()).columns("1", 103 * S, 5)["last_minute"]
    assert set(nothing.values()) == {None}


def test_only_so_many_seconds_and_waiting_requests_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_trend, "MAX_SECONDS", 3)
    monkeypatch.setattr(cache_trend, "MAX_WAITING", 2)
    stream = FactStream(now=100 * S)
    stream.describe()
    for number in range(5):
        stream.now = (100 + number) * S
        stream.submit(f"r-{number}")
        stream.step()
    trend = seen(stream)
    assert list(trend._seconds["0"]) == [102, 103, 104]
    assert list(trend._waiting) == ["r-3", "r-4"]
    assert ENGINE.engine == "0"


def test_of_too_many_seconds_the_oldest_goes_though_it_came_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_trend, "MAX_SECONDS", 3)
    stream = FactStream(now=100 * S)
    stream.describe()
    for second in (101, 103, 102, 104):
        stream.now = second * S
        stream.step()
    assert sorted(seen(stream)._seconds["0"]) == [102, 103, 104]

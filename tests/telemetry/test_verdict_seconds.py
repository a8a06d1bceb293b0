"""Sums are kept by the second, shared out over the seconds a step lasts, and forgotten when no window has them."""

import pytest

from vllm_obs.telemetry.rate_windows import NUM_SECONDS
from vllm_obs.telemetry.verdict_seconds import Seconds

S = 10**9


def test_a_window_has_its_whole_seconds() -> None:
    seconds = Seconds()
    for second in range(100, 110):
        seconds.add(second * S + 5, {"steps": 1, "ns": 2.5})
    assert seconds.total(104 * S, 110 * S) == {"steps": 6, "ns": 15.0}
    assert seconds.total(104 * S + 1, 110 * S - 1) == {"steps": 4, "ns": 10.0}


def test_what_lasts_is_shared_out() -> None:
    seconds = Seconds()
    seconds.spread(100 * S + S // 2, 103 * S, {"ns": 2.5 * S})
    assert [seconds.total(each * S, (each + 1) * S)["ns"] for each in (100, 101, 102, 103)] == pytest.approx(
        [0.5 * S, S, S, 0]
    )


def test_what_lasts_no_time_counts_once() -> None:
    seconds = Seconds()
    seconds.spread(100 * S, 100 * S, {"steps": 1})
    seconds.spread(100 * S + 7, 100 * S, {"steps": 1})
    assert seconds.total(100 * S, 101 * S) == {"steps": 2}


def test_old_seconds_are_forgotten() -> None:
    seconds = Seconds()
    for second in range(3 * NUM_SECONDS):
        seconds.add(second * S, {"steps": 1})
    seconds.add(0, {"steps": 1})
    seconds.spread(0, 3 * NUM_SECONDS * S, {"ns": 1.0})
    assert len(seconds) == NUM_SECONDS

"""Timers of one process meet, and none comes twice for one moment."""

import pytest

from vllm_obs.server import beat
from vllm_obs.server.beat import until_beat


class Clock:
    """The time, as the test sets it."""

    now = 0.0

    def monotonic(self) -> float:
        return beat._BEGUN_AT + self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(beat, "time", made)
    return made


@pytest.mark.parametrize(
    ("now", "period", "left"),
    [(0.0, 0.5, 0.5), (0.2, 0.5, 0.3), (7.4, 0.5, 0.1), (7.4, 1.0, 0.6), (12.25, 0.5, 0.25)],
)
def test_the_next_moment_is_one_of_the_periods(clock: Clock, now: float, period: float, left: float) -> None:
    clock.now = now
    assert until_beat(period) == pytest.approx(left)


def test_a_timer_that_came_a_little_early_is_not_asked_again_at_once(clock: Clock) -> None:
    clock.now = 3.999
    assert until_beat(0.5) == pytest.approx(0.501)


def test_timers_of_periods_that_divide_each_other_meet(clock: Clock) -> None:
    clock.now = 5.3
    moments = {clock.now + until_beat(period) for period in (0.5, 1.0)}
    clock.now = 5.8
    assert max(moments) == pytest.approx(clock.now + until_beat(0.5))

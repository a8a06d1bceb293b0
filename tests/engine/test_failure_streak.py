"""The third step in a row that fails is the engine's end."""

import pytest

from vllm_obs.engine.errors import EngineDeadError
from vllm_obs.engine.failure_streak import MAX_FAILED_STEPS, FailureStreak


def test_the_last_that_may_fail_raises_with_its_cause() -> None:
    streak, cause = FailureStreak(), ValueError("planted")
    for _ in range(MAX_FAILED_STEPS - 1):
        streak.count("rows that could not be sampled")
    with pytest.raises(EngineDeadError, match="3 steps failed in a row, the last with an error") as caught:
        streak.count("an error", cause)
    assert caught.value.__cause__ is cause


def test_one_that_works_ends_it() -> None:
    streak = FailureStreak()
    for _ in range(2 * MAX_FAILED_STEPS):
        streak.count("an error")
        streak.end()

"""Several engines give one answer to a call."""

from typing import Any

import pytest

from vllm_obs.engine.errors import EngineDeadError, RequestFailedError
from vllm_obs.engine.utility_answers import joined_answers

DEAD = EngineDeadError("it died")


@pytest.mark.parametrize(
    ("method", "answers", "joined"),
    [
        ("ping", ["pong", "pong"], "pong"),
        ("pause_scheduler", [None, None], None),
        ("reset_prefix_cache", [True, True], True),
        ("reset_prefix_cache", [True, False], False),
        ("is_profiling", [False, True], True),
        ("is_paused", [True, False], False),
        ("get_supported_tasks", [["generate"], ["embed"]], [["generate"], ["embed"]]),
        ("ping", ["pong", DEAD], "pong"),
    ],
)
def test_the_answers_of_several_are_one(method: str, answers: list[Any], joined: Any) -> None:
    assert joined_answers(method, answers) == joined


def test_a_failure_is_raised_and_a_death_only_where_no_other_answers() -> None:
    with pytest.raises(RequestFailedError, match="no_such"):
        joined_answers("no_such", [DEAD, RequestFailedError("there is no no_such")])
    with pytest.raises(EngineDeadError, match="it died"):
        joined_answers("ping", [DEAD, DEAD])

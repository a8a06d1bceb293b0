"""What several engines answer to one UTILITY call, as one answer."""

from collections.abc import Sequence
from typing import Any

from vllm_obs.engine.errors import EngineDeadError

ANY_OF = frozenset({"start_profile", "stop_profile", "is_profiling"})
"""Calls whose answer is whether any engine has something under way."""


def joined_answers(method: str, answers: Sequence[Any]) -> Any:
    """What all say who agree. Yes and no become "all of them", or "any of them" for ANY_OF; others stay a list.

    Raises the first failure. An engine that died meanwhile is left out, unless there was no other.
    """
    given = [answer for answer in answers if not isinstance(answer, EngineDeadError)]
    for answer in given or answers:
        if isinstance(answer, BaseException):
            raise answer
    if all(isinstance(answer, bool) for answer in given):
        return any(given) if method in ANY_OF else all(given)
    return given[0] if all(answer == given[0] for answer in given) else given

"""UTILITY calls about profiles: passed on to the ranks, one profile at a time, harmless when they are wrong."""

from concurrent.futures import Future

import pytest
from core_bench import Bench

from vllm_obs.engine import profile_core
from vllm_obs.engine.errors import RequestError
from vllm_obs.engine.profile_core import order_values
from vllm_obs.engine.profile_order import OPERATORS, ProfileOrder

ORDER = ProfileOrder("p", OPERATORS, "/tmp", 5.0, 100, 2, ("shapes",))


def test_a_profile_is_begun_looked_at_and_ended_in_the_ranks() -> None:
    bench = Bench()
    call = bench.core.call_utility
    assert call("is_profiling", []) is False
    assert call("start_profile", [order_values(ORDER)]) is True
    assert call("is_profiling", []) is True
    with pytest.raises(RequestError, match="a profile is under way already"):
        call("start_profile", [order_values(ORDER)])
    assert call("stop_profile", []) is False
    assert call("is_profiling", []) is False
    assert bench.executor.profiles == [ORDER, None]


@pytest.mark.parametrize(
    "values", [[], ["p"], order_values(ORDER)[:-1], [*order_values(ORDER)[:3], "5", 1, 0, []], [None] * 7]
)
def test_what_is_no_order_reaches_no_rank(values: list[object]) -> None:
    bench = Bench()
    with pytest.raises(RequestError, match="cannot be read"):
        bench.core.call_utility("start_profile", [values])
    assert bench.executor.profiles == []


def test_an_order_out_of_bounds_reaches_no_rank() -> None:
    bench = Bench()
    with pytest.raises(RequestError, match="steps is 0"):
        bench.core.call_utility("start_profile", [order_values(ORDER._replace(steps=0))])
    assert bench.executor.profiles == []


def test_ranks_that_do_not_answer_are_said_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    monkeypatch.setattr(profile_core, "RANK_SECONDS", 0.01)
    monkeypatch.setattr(bench.executor, "profile", lambda order, is_look: Future())
    with pytest.raises(RequestError, match=r"the workers have not answered within 0.01 s"):
        bench.core.call_utility("start_profile", [order_values(ORDER)])

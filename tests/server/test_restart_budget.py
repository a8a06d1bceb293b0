"""How often an engine is started again, after which pauses, and what is said when that is enough."""

from vllm_obs.server.restart_budget import RestartBudget


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_the_first_restart_is_at_once_and_each_further_one_waits_twice_as_long_up_to_ten_seconds() -> None:
    clock = Clock()
    budget = RestartBudget(8, clock)
    assert [budget.died() for _ in range(9)] == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0, None]


def test_a_minute_later_a_death_is_a_first_one_again() -> None:
    clock = Clock()
    budget = RestartBudget(1, clock)
    assert budget.died() == 0.0
    clock.now += 61
    assert budget.died() == 0.0
    clock.now += 30
    assert budget.died() is None
    assert budget.says("EngineCore_DP0 was killed by SIGSEGV") == (
        "the engine died 2 times in 30 s, and --engine-restarts allows 1 restarts in 60 s; the last time: "
        "EngineCore_DP0 was killed by SIGSEGV"
    )


def test_without_restarts_the_first_death_is_the_last() -> None:
    budget = RestartBudget(0)
    assert budget.died() is None
    assert budget.says("it was killed") == "the engine died: it was killed"


def test_starts_that_fail_in_a_row_spend_it_however_long_they_take() -> None:
    clock = Clock()
    budget = RestartBudget(2, clock)
    assert budget.died() == 0.0
    clock.now += 600
    assert budget.died(was_ready=False) == 0.0
    clock.now += 600
    assert budget.died(was_ready=False) is None
    assert budget.says("no memory") == "the engine died and could not be started again (2 attempts): no memory"


def test_an_engine_that_was_ready_in_between_ends_the_row_of_failed_starts() -> None:
    clock = Clock()
    budget = RestartBudget(2, clock)
    for was_ready in (True, False, True, False, True):
        assert budget.died(was_ready) is not None
        clock.now += 100

"""How often an engine is started again, after which pauses, and what is said when that is enough."""

from vllm_obs.server.restart_budget import RestartBudget

SEGFAULT = "EngineCore_DP0 was killed by SIGSEGV"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_the_first_restart_is_at_once_and_each_further_one_waits_twice_as_long_up_to_ten_seconds() -> None:
    budget = RestartBudget(8, Clock())
    waits = [budget.died(served_seconds=1) for _ in range(9)]
    assert waits == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0, None]


def test_after_a_minute_of_serving_a_death_is_a_first_one_again() -> None:
    clock = Clock()
    budget = RestartBudget(1, clock)
    assert budget.died(served_seconds=5) == 0.0
    clock.now += 61
    assert budget.died(served_seconds=61) == 0.0
    clock.now += 30
    assert budget.died(served_seconds=30) is None
    assert budget.says(SEGFAULT) == (
        "the engine died 2 times in 30 s, and --engine-restarts allows 1 restarts in 60 s of serving; "
        f"the last time: {SEGFAULT}"
    )


def test_an_engine_that_loads_for_minutes_and_dies_of_its_first_step_is_not_loaded_for_ever() -> None:
    clock = Clock()
    budget = RestartBudget(3, clock)
    waits = []
    for _ in range(4):
        waits.append(budget.died(served_seconds=1))
        clock.now += 200
    assert waits == [0.0, 0.5, 1.0, None]


def test_without_restarts_the_first_death_is_the_last() -> None:
    budget = RestartBudget(0)
    assert budget.died(served_seconds=1000) is None
    assert budget.says("it was killed") == "the engine died: it was killed"


def test_starts_that_fail_in_a_row_spend_it_however_long_they_take() -> None:
    clock = Clock()
    budget = RestartBudget(2, clock)
    assert budget.died(served_seconds=1) == 0.0
    clock.now += 600
    assert budget.failed_to_start() == 0.5
    clock.now += 600
    assert budget.failed_to_start() is None
    assert budget.says("no memory") == "the engine died and could not be started again (2 attempts): no memory"


def test_one_death_and_starts_that_fail_are_not_told_as_so_many_deaths() -> None:
    budget = RestartBudget(3, Clock())
    assert budget.died(served_seconds=1) == 0.0
    assert [budget.failed_to_start() for _ in range(3)] == [0.5, 1.0, None]
    assert budget.says("no memory") == "the engine died and could not be started again (3 attempts): no memory"


def test_a_start_that_failed_between_deaths_is_told_as_one() -> None:
    budget = RestartBudget(2, Clock())
    assert budget.died(served_seconds=1) == 0.0
    assert budget.failed_to_start() == 0.5
    assert budget.died(served_seconds=1) is None
    assert budget.says(SEGFAULT) == (
        "the engine died 2 times and failed to start 1 times in 0 s, and --engine-restarts allows 2 restarts "
        f"in 60 s of serving; the last time: {SEGFAULT}"
    )


def test_an_engine_that_served_in_between_ends_the_row_of_failed_starts() -> None:
    budget = RestartBudget(2, Clock())
    for _ in range(5):
        assert budget.died(served_seconds=100) is not None
        assert budget.failed_to_start() is not None


def test_it_says_whose_deaths_they_were() -> None:
    budget = RestartBudget(0, what="APIServer_3")
    assert budget.died(1.0) is None
    assert budget.says("killed") == "APIServer_3 died: killed"

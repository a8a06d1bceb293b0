"""Of several ends the first cause is found, whatever the order in which they are seen."""

from itertools import permutations

import pytest

from vllm_obs.telemetry.death_watch import End
from vllm_obs.telemetry.incident_culprit import apart, by_engine, judged, kind_of

API = End("APIServer_0", 1, None, 100)
CORE = End("EngineCore_DP0", 2, None, 101)
WORKERS = [End("Worker_TP0", 3, None, 102), End("Worker_TP1", 4, None, 102)]
OBSERVER = End("Observer", 5, -9, 103, is_recorded=True)


def recorded(end: End, code: int) -> End:
    return end._replace(exit_code=code, is_recorded=True)


def roles(ends: list[End]) -> list[list[str]]:
    """The first cause and what followed, for every order of the ends; all must agree on the first."""
    found = [judged(order) for order in permutations(ends)]
    assert len({judgement.first.role if judgement else "" for judgement in found}) == 1
    judgement = found[0]
    return [] if judgement is None else [[judgement.first.role], sorted(each.role for each in judgement.others)]


def test_a_killed_root_takes_all_along() -> None:
    assert roles([API, CORE, *WORKERS]) == [["APIServer_0"], ["EngineCore_DP0", "Worker_TP0", "Worker_TP1"]]


def test_a_core_whose_end_the_server_recorded_came_first_and_its_workers_followed() -> None:
    ends = [recorded(CORE, -9), *WORKERS]
    assert roles(ends) == [["EngineCore_DP0"], ["Worker_TP0", "Worker_TP1"]]
    assert roles([*ends, API])[0] == ["EngineCore_DP0"]


def test_an_engine_that_failed_while_its_server_lived_came_first_though_nobody_recorded_it() -> None:
    failed = CORE._replace(exit_code=70, ended_at=99)
    assert roles([failed, API._replace(exit_code=70)])[0] == ["EngineCore_DP0"]
    assert roles([failed._replace(ended_at=101), API._replace(exit_code=70)])[0] == ["APIServer_0"]
    assert roles([failed]) == []


def test_a_worker_whose_end_the_core_recorded_came_before_the_core_gave_up() -> None:
    ends = [recorded(CORE, 70), recorded(WORKERS[1], -9), WORKERS[0]]
    assert roles(ends) == [["Worker_TP1"], ["EngineCore_DP0", "Worker_TP0"]]


def test_of_two_workers_the_one_that_was_killed_came_before_the_one_that_gave_up() -> None:
    gave_up = recorded(WORKERS[0]._replace(ended_at=50), 70)
    assert roles([gave_up, recorded(WORKERS[1], -11)])[0] == ["Worker_TP1"]


def test_an_observer_is_first_only_where_nobody_else_died() -> None:
    assert roles([OBSERVER]) == [["Observer"], []]
    assert roles([OBSERVER, recorded(CORE, -9)]) == [["EngineCore_DP0"], ["Observer"]]
    assert roles([OBSERVER, API, CORE]) == [["APIServer_0"], ["EngineCore_DP0", "Observer"]]


@pytest.mark.parametrize(
    "ends",
    [
        [],
        [recorded(CORE, -9)._replace(was_told=True)],
        [recorded(CORE, 78)],
        [CORE],
        WORKERS,
        [CORE, *WORKERS],
        [recorded(CORE, 0)._replace(was_told=True), *WORKERS],
    ],
)
def test_ends_that_were_ordered_or_that_a_living_owner_may_yet_explain_are_no_incident(
    ends: list[End],
) -> None:
    assert roles(ends) == []


def test_roles_have_kinds() -> None:
    names = ("APIServer_0", "EngineCore_DP1", "Worker_DP0_TP3", "Observer", "Launcher", "other")
    assert [kind_of(name) for name in names] == ["APIServer", "EngineCore", "Worker", "Observer", "Launcher", ""]


def test_engines_that_follow_one_upon_the_other_are_kept_apart() -> None:
    first, second = recorded(CORE._replace(ended_at=200), -9), recorded(CORE._replace(pid=12, ended_at=300), -9)
    of_first, of_second = WORKERS[0]._replace(ended_at=320), WORKERS[0]._replace(pid=13, ended_at=320)
    started = {of_first.pid: 110, of_second.pid: 210}
    ends = [OBSERVER._replace(ended_at=310), of_second, of_first, second, first]
    groups = apart(ends, lambda end: started.get(end.pid, 0))
    assert [[end.pid for end in group] for group in groups] == [[3, 2], [5, 13, 12]]
    assert [judgement.first.pid for group in groups if (judgement := judged(group))] == [2, 12]


def test_other_engines_that_die_together_are_told_of_each_for_itself() -> None:
    other = recorded(CORE._replace(role="EngineCore_DP1", pid=9, ended_at=150), -9)
    ends = [recorded(CORE, -9), other, *WORKERS]
    assert apart(ends, lambda end: 0) == [ends]
    assert by_engine(ends) == [[ends[0], *WORKERS], [other]]
    assert apart([], lambda end: 0) == []


def test_engines_and_an_api_server_of_several_have_nothing_to_do_with_each_other() -> None:
    other = recorded(CORE._replace(role="EngineCore_DP1", pid=9), -9)
    server = recorded(End("APIServer_1", 6, None, 100), -9)
    assert by_engine([recorded(CORE, -9), server, other, OBSERVER]) == [
        [recorded(CORE, -9)],
        [server, OBSERVER],
        [other],
    ]


def test_engines_whose_server_is_gone_as_well_are_together() -> None:
    ends = [recorded(CORE, -9), recorded(CORE._replace(role="EngineCore_DP1", pid=9), -9), API]
    assert by_engine(ends) == [ends]
    assert by_engine([API, CORE, *WORKERS]) == [[API, CORE, *WORKERS]]


def test_with_a_launcher_an_api_server_may_die_alone() -> None:
    server, launcher = End("APIServer_1", 6, None, 100), End("Launcher", 7, -9, 100)
    assert roles([recorded(server, -9)]) == [["APIServer_1"], []]
    followers = ["APIServer_1", "EngineCore_DP0", "Worker_TP0", "Worker_TP1"]
    assert roles([launcher, server, CORE, *WORKERS]) == [["Launcher"], followers]


def test_only_the_workers_of_a_dead_engine_follow_it() -> None:
    other = End("Worker_DP1_TP0_PP0", 21, None, 100)
    own = End("Worker_DP0_TP0_PP0", 20, None, 100)
    assert roles([recorded(CORE, -9), own, other]) == [["EngineCore_DP0"], ["Worker_DP0_TP0_PP0"]]

"""Processes are known from their start to their end, with what their start took."""

import pytest
from fact_stream import ENGINE

from vllm_obs.telemetry.process_table import MAX_PHASES, MAX_PROCESSES, ProcessFacts, ProcessTable
from vllm_obs.telemetry.records import ProcessExited, ProcessPhase, ProcessReady, ProcessStarted


def test_a_process_starts_gets_ready_and_exits() -> None:
    table = ProcessTable()
    table.started(ProcessStarted("EngineCore_DP0", 200, 10, 1_000))
    table.phase(ENGINE, ProcessPhase("EngineCore_DP0", "imports", 10, 60))
    assert [each.state for each in table.all()] == ["starting"]
    table.ready(ProcessReady("EngineCore_DP0", 200, 110))
    assert [each.state for each in table.all()] == ["ready"]
    table.exited(ProcessExited("EngineCore_DP0", 200, -9, 500))
    phases = [ProcessPhase("EngineCore_DP0", "imports", 10, 60)]
    assert table.all() == [
        ProcessFacts("EngineCore_DP0", 200, ENGINE.generation, 10, 1_000, 110, 500, -9, False, phases)
    ]
    assert table.all()[0].state == "exited"


def test_a_process_whose_ring_ended_is_dead_even_if_nobody_saw_it() -> None:
    table = ProcessTable()
    table.gone(ENGINE)
    found = table.get("EngineCore_DP0", 200)
    assert found is not None
    assert (found.state, found.exit_code) == ("exited", None)


@pytest.mark.parametrize(
    ("phases", "share"),
    [([(0, 100)], 1.0), ([(0, 30), (20, 50)], 0.5), ([(50, 60), (0, 40)], 0.5), ([(90, 300)], 0.1), ([], 0.0)],
)
def test_start_up_is_accounted_once(phases: list[tuple[int, int]], share: float) -> None:
    process = ProcessFacts("r", 1, started_at=0, ready_at=100)
    process.phases = [ProcessPhase("r", "p", begun_at, ended_at) for begun_at, ended_at in phases]
    assert process.accounted_share == share


def test_a_phase_that_an_owner_recorded_belongs_to_its_child() -> None:
    table = ProcessTable()
    table.started(ProcessStarted("Worker_TP0", 300, 10, 20))
    table.phase(ENGINE, ProcessPhase("Worker_TP0", "load", 10, 60))
    table.phase(ENGINE, ProcessPhase("nobody", "load", 10, 60))
    assert {each.role: len(each.phases) for each in table.all()} == {"Worker_TP0": 1, "EngineCore_DP0": 1}


def test_the_table_is_bounded_and_the_dead_go_first() -> None:
    table = ProcessTable()
    for pid in range(MAX_PROCESSES):
        table.started(ProcessStarted("r", pid, 10, 20))
    table.exited(ProcessExited("r", 7, 0, 99))
    for pid in (1000, 1001):
        table.started(ProcessStarted("r", pid, 10, 20))
    for _ in range(MAX_PHASES + 10):
        table.phase(ENGINE._replace(role="r", pid=1000), ProcessPhase("r", "load", 1, 2))
    gone = [pid for pid in (*range(MAX_PROCESSES), 1000, 1001) if table.get("r", pid) is None]
    assert (gone, len(table)) == ([0, 7], MAX_PROCESSES)
    found = table.get("r", 1000)
    assert found is not None
    assert len(found.phases) == MAX_PHASES

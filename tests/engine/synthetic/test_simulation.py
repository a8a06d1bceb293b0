"""Simulation: a whole run in virtual time, as true to the books as a live one."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_run import feed, of_kind, synthetic_facts

from vllm_obs.engine.synthetic.regimes import REGIMES, Arrival, Stall
from vllm_obs.engine.synthetic.simulated_ring import SimulatedHeader
from vllm_obs.engine.synthetic.simulation import Simulation, SimulationOptions, simulate
from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.records import (
    EngineDescribed,
    HttpRequestEnded,
    OutputsTaken,
    ProcessReady,
    Record,
    RequestEnded,
    RequestReleased,
    RequestSubmitted,
    RequestTaken,
    StepAnswered,
    StepPlanned,
    WorkerStep,
)

NS = 1_000_000_000


@pytest.mark.parametrize("regime", REGIMES)
def test_all_laws_hold_and_every_request_ends_once(regime: str) -> None:
    facts = synthetic_facts([regime], seed=4, seconds=15.0)
    state = feed(facts)
    assert [law for law in state.invariants.state() if law.num_broken] == []
    assert not state.sequences
    submitted = {each.request_id for each in of_kind(facts, RequestSubmitted)}
    for kind in (RequestTaken, RequestReleased, RequestEnded):
        assert Counter(each.request_id for each in of_kind(facts, kind)) == dict.fromkeys(submitted, 1)
    assert len(of_kind(facts, HttpRequestEnded)) == len(submitted)


@settings(max_examples=10, deadline=None)
@given(st.lists(st.sampled_from(list(REGIMES)), min_size=1, max_size=3, unique=True), st.integers(0, 1000))
def test_any_blend_keeps_the_laws(regimes: list[str], seed: int) -> None:
    state = feed(synthetic_facts(regimes, seed, seconds=3.0))
    assert [law for law in state.invariants.state() if law.num_broken] == []
    assert not state.sequences


def test_the_same_arguments_give_the_same_records() -> None:
    assert simulate(["calm", "kv_pressure"], 2, 5.0) == simulate(["calm", "kv_pressure"], 2, 5.0)
    assert simulate(["calm"], 2, 5.0) != simulate(["calm"], 3, 5.0)


def test_a_run_records_what_a_live_one_does() -> None:
    facts = synthetic_facts(["calm"], seconds=5.0)
    assert Counter(source.role for source, record in facts if isinstance(record, ProcessReady)) == {
        "APIServer_0": 1,
        "EngineCore_DP0": 1,
        "Worker_TP0": 1,
        "Worker_TP1": 1,
    }
    (described,) = of_kind(facts, EngineDescribed)
    assert (described.num_blocks, described.num_blocks_override, described.world_size) == (512, 512, 2)
    answered = {step.step for step in of_kind(facts, StepAnswered)}
    assert Counter((step.step, step.rank) for step in of_kind(facts, WorkerStep)) == {
        (step, rank): 1 for step in answered for rank in (0, 1)
    }
    assert {taken.step for taken in of_kind(facts, OutputsTaken)} == answered
    accounts = {submitted.account for submitted in of_kind(facts, RequestSubmitted)}
    assert accounts <= {"team-red", "team-green", "team-blue"}


def test_each_source_writes_in_order_of_time() -> None:
    seen: list[tuple[str, int]] = []
    simulation = Simulation(
        [Arrival(0.1 * number, 50, 20, "", "") for number in range(40)],
        sink=lambda at, source, record: seen.append((source.role, simulation_moment(record))),
    )
    simulation.run(5.0)
    for role in {role for role, _ in seen}:
        moments = [moment for found, moment in seen if found == role and moment]
        assert moments == sorted(moments), role


def simulation_moment(record: Record) -> int:
    """When the fact was known, of the kinds that say so in one field."""
    for name in ("submitted_at", "ended_at", "processed_at", "updated_at", "released_at"):
        if name == "submitted_at" and isinstance(record, RequestTaken):
            continue
        moment = getattr(record, name, 0)
        if moment:
            return int(moment)
    return 0


class Watch:
    """What the headers showed, round by round."""

    def __init__(self) -> None:
        self.rounds: list[tuple[int, dict[str, SimulatedHeader]]] = []

    def look(self, moment: int, headers: dict[str, SimulatedHeader]) -> None:
        self.rounds.append((moment, headers))

    def longest_stand(self, role: str) -> float:
        """How long the progress of a role stood still while its ring said that it ran something."""
        since, last, longest = 0, -1, 0
        for moment, headers in self.rounds:
            header = headers[role]
            if header.progress != last or header.activity in (Activity.WAITING, Activity.STARTING):
                since, last = moment, header.progress
            longest = max(longest, moment - since)
        return longest / NS


def watched(arrivals: list[Arrival], stalls: list[Stall], options: SimulationOptions, seconds: float) -> Watch:
    watch = Watch()
    Simulation(arrivals, stalls, options, on_round=watch.look).run(seconds)
    return watch


def test_a_stopped_rank_stands_still_and_the_other_waits_for_it() -> None:
    arrivals = [Arrival(0.5 * number, 100, 30, "", "") for number in range(20)]
    watch = watched(arrivals, [Stall(3.0, 6.0)], SimulationOptions(), 12.0)
    assert 5.5 <= watch.longest_stand("Worker_TP1") <= 6.5
    stopped = [headers for _, headers in watch.rounds if headers["Worker_TP1"].is_stopped]
    assert len(stopped) == 24
    assert {headers["Worker_TP1"].activity for headers in stopped[1:]} == {Activity.EXECUTING}
    assert not any(headers["Worker_TP0"].is_stopped for _, headers in watch.rounds)
    facts = synthetic_facts(["stalled_rank"], 0, 20.0)
    lengths = {
        (step.step, step.rank): (step.forwarded_at - step.received_at) / 1e9 for step in of_kind(facts, WorkerStep)
    }
    (number, rank), longest = max(lengths.items(), key=lambda entry: entry[1])
    assert rank == 1
    assert longest > 3
    assert lengths[number, 0] < 0.2


def test_a_prefill_of_a_minute_keeps_moving() -> None:
    options = SimulationOptions(step_time={"seconds_per_token": 0.12})
    watch = watched([Arrival(0.0, 500, 2, "", "")], [], options, 70.0)
    assert len(watch.rounds) > 240
    for role in ("Worker_TP0", "Worker_TP1"):
        assert watch.longest_stand(role) < 4


def test_an_hour_of_gaps_passes_in_rounds() -> None:
    arrivals = [Arrival(1800.0 * number, 20, 4, "", "") for number in range(2)]
    watch = watched(arrivals, [], SimulationOptions(round_seconds=10.0, start_seconds=30.0), 3600.0)
    assert len(watch.rounds) == 363
    assert watch.rounds[0][1]["Worker_TP0"].activity == Activity.LOADING_MODEL
    idle = [headers["EngineCore_DP0"].activity for _, headers in watch.rounds[5:]]
    assert set(idle) == {Activity.WAITING}


def test_what_can_never_fit_is_refused_and_recorded_so() -> None:
    facts: list[Record] = []
    simulation = Simulation([Arrival(0.0, 9000, 4, "", "")], sink=lambda at, source, record: facts.append(record))
    simulation.run(1.0)
    (ended,) = [record for record in facts if isinstance(record, RequestEnded)]
    assert (ended.finish_reason, ended.error) == ("error", "context_length_exceeded")
    assert not [record for record in facts if isinstance(record, StepPlanned) and record.request_ids]

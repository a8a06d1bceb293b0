"""Whatever happens, and in whatever order two processes' records come, the stages partition the wall time."""

from itertools import pairwise

from fact_stream import ENGINE, FactStream
from hypothesis import given, settings
from hypothesis import strategies as st
from random_run import interleaved, random_runs
from recording_view import RecordingView

from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.records import Record
from vllm_obs.telemetry.run_state import RunState
from vllm_obs.telemetry.stages import STAGES
from vllm_obs.telemetry.view import RecordsLost, Source

often = settings(max_examples=60, deadline=None, database=None)


def assert_partition(ledger: SequenceLedger) -> None:
    assert ledger.ended is not None
    assert ledger.intervals[0].begun_at == ledger.submitted.received_at
    assert ledger.intervals[-1].ended_at == ledger.ended_at
    assert all(before.ended_at == after.begun_at for before, after in pairwise(ledger.intervals))
    assert all(interval.num_ns > 0 and interval.stage in STAGES for interval in ledger.intervals)
    assert sum(ledger.stage_ns().values()) == ledger.latency_ns
    waiting = sum(ledger.stage_ns()[stage] for stage in ("queue", "stalled", "preempted"))
    assert sum(ledger.waits.values()) == waiting


def broken(state: RunState) -> dict[str, int]:
    return {law: num for law, num in state.invariants.counts().items() if num}


@often
@given(random_runs())
def test_stages_partition_the_latency_of_every_sequence(stream: FactStream) -> None:
    state = RunState()
    for source, record in stream.facts:
        state.apply(source, record)
    state.tick(stream.now + 1)
    assert (list(state.sequences), list(state.book.orphans), broken(state)) == ([], [], {})
    assert len(state.ended) == len(stream.sequences)
    for ledger in state.ended:
        assert ledger.is_complete
        assert_partition(ledger)
    engine = state.engines["0"]
    assert (engine.num_running, engine.num_waiting, len(engine.open_steps)) == (0, 0, 0)
    assert tuple(engine.blocks.levels) == stream.blocks.levels
    assert engine.blocks.now().num_refs == stream.blocks.num_refs
    assert engine.blocks.now().hashes == stream.blocks.hashes


@often
@given(interleaved())
def test_the_order_in_which_rings_are_read_changes_nothing(
    both: tuple[FactStream, list[tuple[Source, Record]]],
) -> None:
    stream, mixed = both
    (state, view), (other, other_view) = (RunState(), RecordingView()), (RunState(), RecordingView())
    for run, told, facts in ((state, view, stream.facts), (other, other_view, mixed)):
        run.add_view(told)
        for source, record in facts:
            run.apply(source, record)
        run.tick(stream.now + 1)
    assert broken(other) == {}
    assert {each.request_id: each for each in other.ended} == {each.request_id: each for each in state.ended}
    assert other_view.gaps == view.gaps
    assert [step.planned for step in other_view.steps] == [step.planned for step in view.steps]


@often
@given(random_runs(), st.data())
def test_lost_records_break_no_law_and_are_caught_up_with(stream: FactStream, data: st.DataObject) -> None:
    """A hole in the engine's stream, then keyframes and more of the run."""
    facts = stream.facts
    begin = data.draw(st.integers(2, len(facts)))
    end = data.draw(st.integers(begin, min(len(facts), begin + 40)))
    num_lost = sum(source == ENGINE for source, _ in facts[begin:end])
    state, view = RunState(), RecordingView()
    state.add_view(view)
    for source, record in facts[:begin]:
        state.apply(source, record)
    state.apply(ENGINE, RecordsLost(num_lost))
    for source, record in [fact for fact in facts[begin:end] if fact[0] != ENGINE] + facts[end:]:
        state.apply(source, record)
    for fact in (*stream.keyframes(), *stream.step()):
        state.apply(*fact)
    state.tick(stream.now + 11 * 10**9)
    assert (broken(state), view.losses) == ({}, [("EngineCore_DP0", num_lost)])
    assert list(state.sequences) == []
    engine = state.engines["0"]
    assert (engine.num_running, engine.num_waiting) == (0, 0)
    assert engine.blocks.is_exact
    assert engine.blocks.now().num_refs == stream.blocks.num_refs
    for ledger in state.ended:
        if not ledger.is_partial:
            assert_partition(ledger)

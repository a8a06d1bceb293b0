"""The inspector's export of the last seconds: picks what the timeline draws from the Observer's state."""

from collections.abc import Iterator
from itertools import chain

from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.observer import Observer
from vllm_obs.telemetry.records import ProcessPhase
from vllm_obs.telemetry.run_state import RunState
from vllm_obs.telemetry.step_history import StepFacts
from vllm_obs.telemetry.timeline import Drawing, TimelineFacts, draw

NS = 1_000_000_000


def drawing_of(observer: Observer, last_seconds: float) -> Drawing:
    """What is to be drawn of the last seconds."""
    now = observer.now()
    begin = now - int(last_seconds * NS)
    state = observer.state
    phases: list[ProcessPhase] = [phase for process in state.processes.all() for phase in process.phases]
    facts = TimelineFacts(begin, now, _ledgers_since(state, begin, now), _steps_since(state, begin), phases)
    return draw(facts)


def _ledgers_since(state: RunState, begin: int, now: int) -> Iterator[SequenceLedger]:
    for ledger in chain(state.sequences.values(), state.ended):
        if not ledger.is_closed:
            state.intervals(ledger, now)
        if not ledger.is_closed or ledger.ended_at >= begin:
            yield ledger


def _steps_since(state: RunState, begin: int) -> Iterator[StepFacts]:
    for engine in chain(state.past_engines, state.engines.values()):
        for step in engine.steps:
            if step.planned.schedule_ended_at >= begin - NS:
                yield step

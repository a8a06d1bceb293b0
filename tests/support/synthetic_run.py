"""A simulated run fed to a RunState, as the Observer would read it."""

from collections.abc import Iterable, Sequence
from typing import Any

from vllm_obs.engine.synthetic.simulation import DEFAULT, SimulationOptions, simulate
from vllm_obs.telemetry.records import Record
from vllm_obs.telemetry.run_state import RunState
from vllm_obs.telemetry.view import Source, View

Facts = list[tuple[Source, Record]]


def synthetic_facts(
    regimes: Sequence[str], seed: int = 0, seconds: float = 60.0, options: SimulationOptions = DEFAULT
) -> Facts:
    """All records of a run under these regimes, in order of time."""
    return [(Source(*source), record) for source, record in simulate(regimes, seed, seconds, options)]


def feed(facts: Iterable[tuple[Source, Record]], *views: View) -> RunState:
    """The state after all of them."""
    state = RunState()
    for view in views:
        state.add_view(view)
    for source, record in facts:
        state.apply(source, record)
    return state


def of_kind(facts: Facts, kind: type[Record]) -> list[Any]:
    """The records of one kind."""
    return [record for _, record in facts if isinstance(record, kind)]

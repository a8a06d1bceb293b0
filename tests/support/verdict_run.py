"""A run with what a verdict is made from, told its facts one by one."""

from collections.abc import Iterable, Sequence
from typing import Any

from vllm_obs.engine.synthetic.simulation import simulate
from vllm_obs.telemetry.floor_ratios import FloorRatios
from vllm_obs.telemetry.metric_store import MetricStore
from vllm_obs.telemetry.record_moments import moment_of
from vllm_obs.telemetry.records import Record
from vllm_obs.telemetry.run_state import RunState
from vllm_obs.telemetry.verdict import Verdict
from vllm_obs.telemetry.view import Source

NS = 10**9


class VerdictRun:
    """A RunState with its floors and its verdict; `now` is the newest moment told of."""

    def __init__(self, is_live: bool = True, store: MetricStore | None = None) -> None:
        self.state = RunState()
        self.floors = FloorRatios(store)
        self.verdict = Verdict(self.state, self.floors, is_live, store)
        self.state.add_view(self.floors)
        self.state.add_view(self.verdict)
        self.now = 0

    def tell(self, facts: Iterable[tuple[Any, Record]], until: int | None = None) -> None:
        """Apply facts in order, those up to a moment only where one is given."""
        for source, record in facts:
            moment = moment_of(record)
            if until is not None and moment > until:
                return
            self.now = max(self.now, moment)
            self.state.apply(Source(*source), record)
        assert self.state.views.num_errors == 0

    def names(self, window: str = "1m") -> set[str]:
        """What the verdict names now."""
        return {finding.name for finding in self.verdict.findings(window, self.now)}


def simulated(regimes: Sequence[str], seed: int, seconds: float = 60.0) -> VerdictRun:
    """What is known of a simulated run when its load ends."""
    facts = simulate(regimes, seed, seconds)
    begun_at = next(record.received_at for _, record in facts if type(record).__name__ == "RequestSubmitted")
    run = VerdictRun()
    run.tell(facts, until=begun_at + int(seconds * NS))
    return run

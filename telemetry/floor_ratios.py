"""FloorRatios: how many times the least time for as much work each step took, by step, window and scrape."""

from typing import Any

from vllm_obs.telemetry.ddsketch import DDSketch
from vllm_obs.telemetry.floor import Floor, Work, work_of
from vllm_obs.telemetry.metric_series import Histogram
from vllm_obs.telemetry.metric_store import MetricStore
from vllm_obs.telemetry.quantiles import MAX_ENGINES, Track
from vllm_obs.telemetry.records import EngineDescribed, Record
from vllm_obs.telemetry.step_history import StepFacts
from vllm_obs.telemetry.view import BaseView, Source

NS = 1_000_000_000
METRIC = "vllm_obs_step_floor_ratio"


class _EngineFloor:
    """One engine's floor, its ratios by the second, and the worst of late."""

    def __init__(self) -> None:
        self.floor = Floor()
        self.ratios = Track()
        self.described: EngineDescribed | None = None
        self.histogram: Histogram | None = None

    def describe(self, record: EngineDescribed) -> None:
        """Another model or another device has another floor; one that was only started again has the same."""
        if self.described is not None and _identity(self.described) != _identity(record):
            self.floor = Floor()
        self.described = record


class FloorRatios(BaseView):
    """A view that sets `floor_seconds` of each step it can tell it of; to be told before those that read it."""

    record_kinds = (EngineDescribed,)

    def __init__(self, store: MetricStore | None = None) -> None:
        self._store = store
        self._engines: dict[str, _EngineFloor] = {}

    def record(self, source: Source, record: Record) -> None:
        """An engine says what it is."""
        if isinstance(record, EngineDescribed):
            self._describe(source.engine or "0", record)

    def step_closed(self, step: StepFacts) -> None:
        """Learn from a step that answered, and hold it against what was learnt."""
        num_ns = step.worker_ns
        if step.answered is None or num_ns <= 0:
            return
        engine = self._engine(step.engine)
        if engine.described is None:
            return
        work = work_of(step.planned, engine.described)
        engine.floor.observe(work, num_ns)
        floor_ns = engine.floor.of(work)
        if floor_ns is None:
            return
        step.floor_seconds = floor_ns / NS
        ratio = num_ns / floor_ns
        engine.ratios.observe(ratio, step.answered.updated_at)
        if engine.histogram is not None:
            engine.histogram.observe(ratio)

    def expected_ns(self, engine: str, work: Work) -> int | None:
        """What a step of so much work may be expected to take at best: its floor, or what more work once took."""
        found = self._engines.get(engine)
        if found is None:
            return None
        floor_ns = found.floor.of(work)
        return floor_ns if floor_ns is not None else found.floor.bound(work)

    def described(self, engine: str) -> EngineDescribed | None:
        """What the engine said it is."""
        found = self._engines.get(engine)
        return found.described if found is not None else None

    def sketch(self, since: int, engine: str | None = None) -> DDSketch:
        """The ratios of all steps since a moment whose floor is known, of one engine or of all."""
        merged = DDSketch()
        for label, found in self._engines.items():
            if engine is None or label == engine:
                for sketch in found.ratios.since(since):
                    merged.merge(sketch)
        return merged

    def state(self) -> Any:
        """The floors in plain values; windows begin anew."""
        return [
            [label, list(found.described) if found.described is not None else None, found.floor.state()]
            for label, found in self._engines.items()
        ]

    def restore(self, state: Any) -> None:
        """Go on from a `state`. TypeError or ValueError if it is none."""
        for label, described, floor in state:
            if described is not None:
                self._describe(label, EngineDescribed(*described))
            self._engine(label).floor.restore(floor)

    def _describe(self, label: str, record: EngineDescribed) -> None:
        engine = self._engine(label)
        engine.describe(record)
        if self._store is not None and record.model_names:
            engine.histogram = self._store.histogram(METRIC, label, record.model_names[0])

    def _engine(self, label: str) -> _EngineFloor:
        found = self._engines.get(label)
        if found is None and len(self._engines) >= MAX_ENGINES:
            return next(iter(self._engines.values()))
        return found if found is not None else self._engines.setdefault(label, _EngineFloor())


def _identity(record: EngineDescribed) -> tuple[object, ...]:
    return (record.model_names, record.dtype, record.device, record.world_size, record.weight_bytes)

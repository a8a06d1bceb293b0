"""Utilisation: what the workers computed and read second by second, and what their machines can do at best."""

from collections import OrderedDict
from collections.abc import Callable
from operator import add
from typing import Any, NamedTuple

from vllm_obs.telemetry.floor import work_of
from vllm_obs.telemetry.quantiles import MAX_ENGINES
from vllm_obs.telemetry.records import EngineDescribed, Record, WorkerLimits
from vllm_obs.telemetry.step_history import StepFacts
from vllm_obs.telemetry.step_phases import slowest_way
from vllm_obs.telemetry.view import BaseView, Source

NS = 1_000_000_000
MAX_SECONDS = 301
"""The longest window, and the second that is not over yet."""
MAX_RANKS = 1024
MIN_SEEN_NS = 1_000_000
"""Shorter steps are not taken for what a machine can do: their moments are too coarse."""
DECODE, PREFILL = "decode", "prefill"
"""Kinds of steps: every row computes one token, or some row computes more."""


class WorkSum(NamedTuple):
    """What steps did, and the workers' time (ns) it took; phases are those of the rank that was done last.

    Of steps in flight together each has the time since the one before it was done: none counts twice. `wait_ns` is
    between the forward pass and the sampling.
    """

    num_steps: int = 0
    num_tokens: int = 0
    num_flops: int = 0
    num_bytes: int = 0
    worker_ns: int = 0
    prepare_ns: int = 0
    forward_ns: int = 0
    wait_ns: int = 0
    sample_ns: int = 0

    def plus(self, other: "WorkSum") -> "WorkSum":
        """Both."""
        return WorkSum(*map(add, self, other))


class Rates(NamedTuple):
    """Floating-point operations and bytes read in a second; 0 where that is not known."""

    flops: float = 0.0
    num_bytes: float = 0.0

    def or_more(self, other: "Rates") -> "Rates":
        """The higher of each."""
        return Rates(max(self.flops, other.flops), max(self.num_bytes, other.num_bytes))


class EngineWork:
    """One engine: its ranks' limits, the best that a step did, and its work by second and kind of step."""

    def __init__(self) -> None:
        self.limits: dict[int, WorkerLimits] = {}
        """By rank."""
        self.seen = Rates()
        """Of one step, all ranks together: a start that was disturbed measures too little."""
        self.first_at = 0
        """When the first step began that is counted."""
        self.done_at = 0
        """When the last step was sampled."""
        self.seconds: OrderedDict[int, dict[str, WorkSum]] = OrderedDict()

    def add(self, at: int, kind: str, work: WorkSum, step_ns: int) -> None:
        """A step was over at that moment, which its workers were in for `step_ns`."""
        kinds = self.seconds.setdefault(at // NS, {})
        before = kinds.get(kind)
        kinds[kind] = work if before is None else before.plus(work)
        while len(self.seconds) > MAX_SECONDS:
            self.seconds.popitem(last=False)
        if step_ns >= MIN_SEEN_NS:
            seconds = step_ns / NS
            flops, num_bytes = work.num_flops / seconds, work.num_bytes / seconds
            if flops > self.seen.flops or num_bytes > self.seen.num_bytes:
                self.seen = self.seen.or_more(Rates(flops, num_bytes))

    def measured(self, num_ranks: int) -> Rates | None:
        """What was measured of all ranks together; None while one of them is not known."""
        found = [self.limits[rank] for rank in range(num_ranks) if rank in self.limits]
        if not found or len(found) < num_ranks:
            return None
        flops, sizes = [each.flops_per_second for each in found], [each.bytes_per_second for each in found]
        return Rates(sum(flops) if all(flops) else 0.0, sum(sizes) if all(sizes) else 0.0)

    def between(self, begun_at: int, ended_at: int) -> dict[str, WorkSum]:
        """By kind, from the second of one moment up to that of another."""
        first, last = begun_at // NS, ended_at // NS
        rows: dict[str, list[WorkSum]] = {DECODE: [], PREFILL: []}
        for second, kinds in self.seconds.items():
            if first <= second <= last:
                for kind, work in kinds.items():
                    rows[kind].append(work)
        return {kind: WorkSum(*map(sum, zip(*each, strict=True))) for kind, each in rows.items()}


class Utilisation(BaseView):
    """A view; `described` says what an engine is. Windows begin anew with another Observer, limits do not."""

    record_kinds = (WorkerLimits,)

    def __init__(self, described: Callable[[str], EngineDescribed | None]) -> None:
        self._described = described
        self._engines: dict[str, EngineWork] = {}

    def record(self, source: Source, record: Record) -> None:
        """A rank measured its machine; of an engine that was started again it measures anew."""
        if isinstance(record, WorkerLimits):
            engine = self._engine(source.engine or "0")
            if engine is not None and 0 <= record.rank < MAX_RANKS:
                engine.limits[record.rank] = record

    def step_closed(self, step: StepFacts) -> None:
        """Count a step that answered, of which every rank told."""
        described, num_ns = self._described(step.engine), step.worker_ns
        if step.answered is None or described is None or num_ns <= 0 or len(step.workers) < described.world_size:
            return
        engine = self._engine(step.engine)
        if engine is None:
            return
        done_at = max(worker.sampled_at for worker in step.workers)
        work = _work(step, described, min(num_ns, max(0, done_at - engine.done_at)))
        engine.done_at = max(engine.done_at, done_at)
        engine.first_at = engine.first_at or step.planned.schedule_begun_at
        kind = DECODE if work.num_tokens == len(step.planned.request_ids) else PREFILL
        engine.add(step.answered.updated_at, kind, work, num_ns)

    def engine(self, label: str) -> EngineWork | None:
        """What is known of an engine's work."""
        return self._engines.get(label)

    def described(self, label: str) -> EngineDescribed | None:
        """What the engine said it is."""
        return self._described(label)

    def state(self) -> Any:
        """The limits and the best that was seen, in plain values."""
        return [
            [label, [list(each) for each in engine.limits.values()], list(engine.seen)]
            for label, engine in self._engines.items()
        ]

    def restore(self, state: Any) -> None:
        """Go on from a `state`. TypeError or ValueError if it is none."""
        for label, limits, seen in state:
            engine = self._engine(label)
            if engine is not None:
                engine.limits = {each.rank: each for each in (WorkerLimits(*values) for values in limits)}
                engine.seen = Rates(*seen)

    def _engine(self, label: str) -> EngineWork | None:
        found = self._engines.get(label)
        if found is None and len(self._engines) < MAX_ENGINES:
            found = self._engines[label] = EngineWork()
        return found


def _work(step: StepFacts, described: EngineDescribed, num_ns: int) -> WorkSum:
    num_tokens, num_bytes = work_of(step.planned, described)
    last = slowest_way(step.stages)
    free_at = step.free_at
    received_at, prepared_at, forwarded_at, sample_begun_at, sampled_at = [
        moment if moment > free_at else free_at for moment in last[2:7]
    ]
    return WorkSum(
        num_steps=1,
        num_tokens=num_tokens,
        num_flops=num_tokens * described.flops_per_token,
        num_bytes=num_bytes,
        worker_ns=num_ns,
        prepare_ns=prepared_at - received_at,
        forward_ns=forwarded_at - prepared_at,
        wait_ns=sample_begun_at - forwarded_at,
        sample_ns=sampled_at - sample_begun_at,
    )

"""StepHistory: the last steps of one engine, each with what every process recorded of it."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple, TypeVar, get_origin, get_type_hints

from vllm_obs.telemetry.floor import worker_ns
from vllm_obs.telemetry.records import OutputsTaken, StepAnswered, StepFailed, StepPlanned, WorkerStep

MAX_STEPS = 10_000
MAX_STEP_AGE_NS = 600 * 10**9
MAX_ROWS = 500_000
"""Rows of all kept steps together; a row takes 40 to 300 bytes, depending on how alike the steps are."""

MAX_SHARERS = 4
"""So many engines keep that much each; where there are more they share it."""

R = TypeVar("R", StepPlanned, StepAnswered)
_COLUMNS = {
    kind: tuple(index for index, hint in enumerate(get_type_hints(kind).values()) if get_origin(hint) is list)
    for kind in (StepPlanned, StepAnswered)
}
"""Places of the lists in a record."""


class StepSpan(NamedTuple):
    """The part of a span of time (monotonic ns) that the engine was inside of a step."""

    step: "StepFacts"
    begun_at: int
    ended_at: int

    @property
    def num_ns(self) -> int:
        """How long it is."""
        return self.ended_at - self.begun_at


@dataclass(slots=True)
class StepFacts:
    """One step of one engine. `answered` and `failed` are None while it runs, and both stay so if it had no rows.

    `workers` holds a record for each rank, `outputs` one for each API server; they may come after the answer.
    Ranks are counted stage by stage, `num_shards` to a stage; 0 where all are in one. An only rank was through
    with the step before at `free_at`, which may be after it took this one. Views set `limit`, its binding limit,
    and `floor_seconds`, the least time its work was ever seen to take, when it is closed.
    """

    engine: str
    planned: StepPlanned
    workers: list[WorkerStep] = field(default_factory=list)
    answered: StepAnswered | None = None
    failed: StepFailed | None = None
    outputs: list[OutputsTaken] = field(default_factory=list)
    is_closed: bool = False
    limit: str = ""
    floor_seconds: float | None = None
    num_shards: int = 0
    free_at: int = 0

    @property
    def step(self) -> int:
        """Its number, which only grows within one engine process."""
        return self.planned.step

    @property
    def stages(self) -> list[list[WorkerStep]]:
        """The ranks that have told, of each stage of the pipeline in turn; one that nobody told of is left out."""
        if not self.num_shards or len(self.workers) < 2:
            return [self.workers] if self.workers else []
        found: dict[int, list[WorkerStep]] = {}
        for worker in self.workers:
            found.setdefault(worker.rank // self.num_shards, []).append(worker)
        return [found[stage] for stage in sorted(found)]

    @property
    def worker_ns(self) -> int:
        """How long its ranks were at it and at nothing before it."""
        return worker_ns(self.workers, self.free_at)

    @property
    def is_over(self) -> bool:
        """Whether the engine is done with it."""
        return self.answered is not None or self.failed is not None or not self.planned.request_ids

    @property
    def over_at(self) -> int:
        """When the engine was done with it; while it runs, when it was planned."""
        if self.answered is not None:
            return self.answered.updated_at
        return self.failed.failed_at if self.failed is not None else self.planned.schedule_ended_at


class StepHistory:
    """The last steps of one engine process by number: so many, of so many rows, none older than ten minutes."""

    def __init__(self, max_steps: int = MAX_STEPS, max_rows: int = MAX_ROWS) -> None:
        self._max_steps = max_steps
        self._max_rows = max_rows
        self._num_rows = 0
        self._steps: deque[StepFacts] = deque()
        self._by_number: dict[int, StepFacts] = {}
        self.doubtful_until = 0
        """Steps up to this one that have no answer may have lost it."""

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[StepFacts]:
        """Oldest first."""
        return iter(self._steps)

    def __reversed__(self) -> Iterator[StepFacts]:
        """Newest first."""
        return reversed(self._steps)

    @property
    def last(self) -> StepFacts | None:
        """The newest step."""
        return self._steps[-1] if self._steps else None

    @property
    def oldest_step(self) -> int:
        """The number of the oldest step kept, 0 when there is none."""
        return self._steps[0].step if self._steps else 0

    def get(self, step: int) -> StepFacts | None:
        """The step with that number, if it is kept."""
        return self._by_number.get(step)

    def since(self, step: int, limit: int) -> list[StepFacts]:
        """The first `limit` kept steps after that number, oldest first."""
        return list(islice((facts for facts in self._steps if facts.step > step), limit))

    def newest(self, limit: int) -> list[StepFacts]:
        """The last `limit` kept steps, oldest first."""
        return list(islice(self._steps, max(0, len(self._steps) - limit), None))

    def within(self, begun_at: int, ended_at: int) -> list[StepSpan]:
        """The kept steps that the engine was inside of between two moments, oldest first, cut to that time.

        Costs a look at each step since `begun_at`. One that has not answered lasts on; if a later one has, its
        answer was lost, and it lasted until that began. Where that cannot be told it is left out.
        """
        found: list[StepSpan] = []
        open_until = ended_at
        for facts in reversed(self._steps):
            if not facts.is_over and facts.step <= self.doubtful_until:
                continue
            until = facts.over_at if facts.is_over else open_until
            if until <= begun_at:
                break
            if facts.is_over:
                open_until = min(open_until, facts.planned.schedule_begun_at)
            span = StepSpan(facts, max(begun_at, facts.planned.schedule_begun_at), min(ended_at, until))
            if span.num_ns > 0:
                found.append(span)
        return found[::-1]

    def limit(self, num_histories: int) -> None:
        """Share the room of MAX_SHARERS histories with so many; what is too much goes with the next step."""
        if num_histories > MAX_SHARERS:
            self._max_steps = MAX_STEPS * MAX_SHARERS // num_histories
            self._max_rows = MAX_ROWS * MAX_SHARERS // num_histories

    def lost(self) -> None:
        """Records are missing from here on, perhaps the answers of steps that have none."""
        self.doubtful_until = self.last.step if self.last is not None else 0

    def add(self, facts: StepFacts) -> None:
        """Keep a step that was planned now; what is too old or too much goes."""
        self._steps.append(facts)
        self._by_number[facts.step] = facts
        self._num_rows += len(facts.planned.request_ids)
        oldest_at = facts.planned.schedule_ended_at - MAX_STEP_AGE_NS
        while self._is_too_much() or self._steps[0].planned.schedule_ended_at < oldest_at:
            self._forget(self._steps.popleft())

    def _is_too_much(self) -> bool:
        return len(self._steps) > self._max_steps or (self._num_rows > self._max_rows and len(self._steps) > 1)

    def _forget(self, facts: StepFacts) -> None:
        self._num_rows -= len(facts.planned.request_ids)
        if self._by_number.get(facts.step) is facts:
            del self._by_number[facts.step]


def not_before_its_plan(worker: WorkerStep, planned: StepPlanned) -> WorkerStep:
    """A rank's part by a clock that may be behind: nobody takes a plan before it was made."""
    behind_ns = planned.schedule_ended_at - worker.received_at
    if behind_ns <= 0:
        return worker
    return worker._replace(
        received_at=worker.received_at + behind_ns,
        prepared_at=worker.prepared_at + behind_ns,
        forwarded_at=worker.forwarded_at + behind_ns,
        sample_begun_at=worker.sample_begun_at + behind_ns if worker.sample_begun_at else 0,
        sampled_at=worker.sampled_at + behind_ns,
    )


def share_columns(record: R, before: tuple[object, ...] | None) -> R:
    """The record with the lists of an earlier one where they are equal: most steps have the rows of the last."""
    if before is None:
        return record
    shared: list[object] = list(record)
    for index in _COLUMNS[type(record)]:
        if shared[index] == before[index]:
            shared[index] = before[index]
    make: Callable[[list[object]], R] = type(record)._make
    return make(shared)

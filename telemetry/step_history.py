"""StepHistory: the last steps of one engine, each with what every process recorded of it."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

from vllm_obs.telemetry.records import OutputsTaken, StepAnswered, StepFailed, StepPlanned, WorkerStep

MAX_STEPS = 10_000
MAX_STEP_AGE_NS = 600 * 10**9
MAX_ROWS = 500_000
"""Rows of all kept steps together; a row takes 40 to 300 bytes, depending on how alike the steps are."""

R = TypeVar("R", StepPlanned, StepAnswered)


@dataclass(slots=True)
class StepFacts:
    """One step of one engine. `answered` and `failed` are None while it runs, and both stay so if it had no rows.

    `workers` holds a record for each rank, `outputs` one for each API server; they may come after the answer.
    """

    engine: str
    planned: StepPlanned
    workers: list[WorkerStep] = field(default_factory=list)
    answered: StepAnswered | None = None
    failed: StepFailed | None = None
    outputs: list[OutputsTaken] = field(default_factory=list)
    is_closed: bool = False

    @property
    def step(self) -> int:
        """Its number, which only grows within one engine process."""
        return self.planned.step

    @property
    def is_over(self) -> bool:
        """Whether the engine is done with it."""
        return self.answered is not None or self.failed is not None or not self.planned.request_ids


class StepHistory:
    """The last steps of one engine process by number: so many, of so many rows, none older than ten minutes."""

    def __init__(self, max_steps: int = MAX_STEPS, max_rows: int = MAX_ROWS) -> None:
        self._max_steps = max_steps
        self._max_rows = max_rows
        self._num_rows = 0
        self._steps: deque[StepFacts] = deque()
        self._by_number: dict[int, StepFacts] = {}

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[StepFacts]:
        """Oldest first."""
        return iter(self._steps)

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


def share_columns(record: R, before: tuple[object, ...] | None) -> R:
    """The record with the lists of an earlier one where they are equal: most steps have the rows of the last."""
    if before is None:
        return record
    shared = [old if type(new) is list and new == old else new for new, old in zip(record, before, strict=True)]
    make: Callable[[list[object]], R] = type(record)._make
    return make(shared)

"""PendingSteps: the steps of one engine that were planned and have not answered, and which rows will be used."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from vllm_obs.telemetry.records import StepPlanned

MAX_PENDING_STEPS = 64


@dataclass(slots=True)
class PendingStep:
    """A plan; the results of `dropped` sequences, which left meanwhile, will not be used."""

    planned: StepPlanned
    dropped: set[str] = field(default_factory=set)

    @property
    def num_used_tokens(self) -> int:
        """Tokens of the rows whose results are used."""
        if not self.dropped:
            return sum(self.planned.num_scheduled_tokens)
        return sum(num_tokens for _, _, num_tokens in self.used_rows())

    def used_rows(self) -> Iterator[tuple[str, int, int]]:
        """Request id, tokens computed before and tokens computed by the step."""
        planned, dropped = self.planned, self.dropped
        rows = zip(planned.request_ids, planned.num_computed_tokens, planned.num_scheduled_tokens, strict=True)
        return (row for row in rows if row[0] not in dropped) if dropped else rows


class PendingSteps:
    """By number, at most 64: more are in flight only where answers were lost."""

    def __init__(self) -> None:
        self._steps: dict[int, PendingStep] = {}

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, planned: StepPlanned) -> None:
        """A step begins."""
        self._steps[planned.step] = PendingStep(planned)
        if len(self._steps) > MAX_PENDING_STEPS:
            del self._steps[next(iter(self._steps))]

    def pop(self, step: int) -> PendingStep | None:
        """A step is over."""
        return self._steps.pop(step, None)

    def drop(self, request_ids: Collection[str]) -> None:
        """These sequences left: their rows in flight are wasted."""
        for step in self._steps.values():
            step.dropped.update(set(request_ids).intersection(step.planned.request_ids))

    def state(self) -> Any:
        """All of them in plain values."""
        return [[list(step.planned), list(step.dropped)] for step in self._steps.values()]

    def restore(self, state: Any) -> None:
        """Go on from a `state`. TypeError or ValueError if it is none."""
        steps = [PendingStep(StepPlanned(*planned), set(dropped)) for planned, dropped in state]
        self._steps = {step.planned.step: step for step in steps}

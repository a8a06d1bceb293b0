"""Graphs without a GPU: a replay does the work again, into the place that the capture's result has."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

Work = Callable[[], torch.Tensor]


@dataclass
class FakeGraph:
    """Does the work again; notes that it did."""

    work: Work
    replays: list[int]
    num_rows: int

    def replay(self) -> None:
        self.replays.append(self.num_rows)
        self.work()


@dataclass
class FakeMaker:
    """Captures graphs of up to `num_rows` rows, or none where `failure` says why; notes what it is asked for."""

    num_rows: int = 100
    failure: Exception | None = None
    num_rehearsed: int = 0
    asked: list[int] = field(default_factory=list)
    replays: list[int] = field(default_factory=list)

    def rehearse(self, work: Work) -> None:
        self.num_rehearsed += 1  # and no more: to interpret kernels takes long

    def capture(self, work: Work) -> tuple[FakeGraph, torch.Tensor]:
        result = work()
        self.asked.append(len(result))
        if self.failure is not None:
            raise self.failure
        if len(result) > self.num_rows:
            raise torch.OutOfMemoryError("fake")
        result.fill_(torch.nan)
        return FakeGraph(work, self.replays, len(result)), result

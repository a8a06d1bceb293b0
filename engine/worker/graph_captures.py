"""Captures of one piece of work at several batch sizes, in an order and with an outcome that all shards share."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol

import torch

from vllm_obs.engine.model.peers import Peers
from vllm_obs.engine.worker.gpu_memory import is_out_of_memory

_logger = logging.getLogger(__name__)
_FLAGS = "lower --gpu-memory-utilization or --max-num-seqs, or set --enforce-eager"

Work = Callable[[], torch.Tensor]


class Graph(Protocol):
    """Work that was captured: replaying it does the same to what the same tensors hold now."""

    def replay(self) -> None:
        """Queue all of it on the current stream."""


class GraphMaker(Protocol):
    """Captures work; graphs of one maker share memory, so no two may be in flight at once."""

    def rehearse(self, work: Work) -> None:
        """Do the work as a capture will: kernels are compiled and libraries have their handles afterwards."""

    def capture(self, work: Work) -> tuple[Graph, torch.Tensor]:
        """The graph, and where its result lies after each replay. Nothing is done, so nobody is waited for."""


class Captured(NamedTuple):
    """A graph, and where its result lies after each replay."""

    graph: Graph
    result: torch.Tensor


class Outcome(IntEnum):
    """Of one attempt; of several shards' the worst counts for all."""

    DONE = 0
    NO_ROOM = 1
    BROKEN = 2


@dataclass(frozen=True)
class Shards:
    """Those that replay together: an exchange within a graph waits for all, so all have the graph or none has."""

    num_shards: int = 1
    agree: Callable[[Outcome], Outcome] = lambda own: own
    """From this shard's outcome, the worst of all shards'. Each has to ask, as often as the others."""

    @classmethod
    def of(cls, peers: Peers, num_shards: int, device: torch.device) -> "Shards":
        """Those of a stage, by way of a sum."""

        def agree(own: Outcome) -> Outcome:
            counts = torch.zeros(len(Outcome), device=device)
            counts[own] = 1.0
            return max(
                outcome for outcome, count in zip(Outcome, peers.total(counts).tolist(), strict=True) if count
            )

        return cls(num_shards, agree) if num_shards > 1 else cls()


ALONE = Shards()


@dataclass(frozen=True)
class Captures:
    """Makes them, the largest first, so that the smaller ones find room in what it took.

    A size that does not fit is left out with a warning. What else goes wrong would go wrong with every size: then
    there are none at all. What goes wrong in a rehearsal is raised among shards: the others are in its middle.
    """

    maker: GraphMaker
    shards: Shards = ALONE

    def of(
        self, work_of: Callable[[int], Work], sizes: Sequence[int], on_size: Callable[[], None] = lambda: None
    ) -> dict[int, Captured]:
        """By size. `on_size` is called after each."""
        captured: dict[int, Captured] = {}
        for size in sorted(sizes, reverse=True):
            found, own = self._attempt(work_of(size), size)
            outcome = self.shards.agree(own)
            if outcome > own:
                _logger.warning("No CUDA graph for %d rows: another shard could not capture it", size)
            if outcome == Outcome.BROKEN:
                return {}
            if found is not None and outcome == Outcome.DONE:
                captured[size] = found
            on_size()
        return captured

    def _attempt(self, work: Work, size: int) -> tuple[Captured | None, Outcome]:
        if self.shards.num_shards > 1:
            self.maker.rehearse(work)
        try:
            if self.shards.num_shards == 1:
                self.maker.rehearse(work)
            return Captured(*self.maker.capture(work)), Outcome.DONE
        except Exception as error:
            return None, _told(error, size)


def _told(error: Exception, size: int) -> Outcome:
    """What came of it, said once."""
    if is_out_of_memory(error):
        _logger.warning("No CUDA graph for %d rows: out of memory (%s); %s", size, error, _FLAGS)
        return Outcome.NO_ROOM
    words = "No CUDA graphs, every step runs eagerly: a capture of %d rows failed with %s: %s"
    _logger.warning(words, size, type(error).__name__, error)
    return Outcome.BROKEN

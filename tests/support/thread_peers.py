"""Ranks as threads of one process, which exchange tensors through a table: the parts of a model side by side."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import TypeVar

import torch

from vllm_obs.engine.model.partition import Partition
from vllm_obs.engine.model.peers import Place

T = TypeVar("T")
WAIT_SECONDS = 20.0


class ThreadPeers:
    """One rank's view of the others; see engine.model.peers.Peers."""

    def __init__(self, ranks: "ThreadRanks", partition: Partition) -> None:
        self._ranks = ranks
        self._partition = partition
        self.num_exchanges = 0

    def total(self, part: torch.Tensor) -> torch.Tensor:
        return torch.stack(self._meet(part)).sum(0)

    def gathered(self, part: torch.Tensor) -> list[torch.Tensor]:
        parts = self._meet(part)
        assert len({each.shape for each in parts}) == 1, "all parts have one shape"
        return parts if self._partition.shard == 0 else []

    def send(self, states: torch.Tensor) -> None:
        self._queue(self._partition.stage).put(states.clone())

    def receive(self, shape: tuple[int, int], device: torch.device) -> torch.Tensor:
        states = self._queue(self._partition.stage - 1).get(timeout=WAIT_SECONDS)
        assert states.shape == shape
        return states

    def _meet(self, part: torch.Tensor) -> list[torch.Tensor]:
        self.num_exchanges += 1
        stage, shard = self._partition.stage, self._partition.shard
        table, barrier = self._ranks.tables[stage], self._ranks.barriers[stage]
        table[shard] = part.clone()
        barrier.wait(WAIT_SECONDS)
        parts = [each.clone() for each in table]
        barrier.wait(WAIT_SECONDS)
        return parts

    def _queue(self, stage: int) -> "SimpleQueue[torch.Tensor]":
        return self._ranks.queues[stage, self._partition.shard]


class ThreadRanks:
    """As many ranks as shards times stages."""

    def __init__(self, num_shards: int, num_stages: int) -> None:
        stages, shards = range(num_stages), range(num_shards)
        self.tables = [[torch.empty(0)] * num_shards for _ in stages]
        self.barriers = [threading.Barrier(num_shards) for _ in stages]
        self.queues = {(stage, shard): SimpleQueue[torch.Tensor]() for stage in stages for shard in shards}
        partitions = [Partition(shard, num_shards, stage, num_stages) for stage in stages for shard in shards]
        self.places = [Place(partition, ThreadPeers(self, partition)) for partition in partitions]

    @property
    def output_rank(self) -> int:
        """The first shard of the last stage."""
        return len(self.places) - len(self.tables[0])

    def run(self, act: Callable[[int], T]) -> list[T]:
        """What `act(rank)` returns on each, all at once; the first error, if one fails."""
        with ThreadPoolExecutor(len(self.places)) as pool:
            return list(pool.map(act, range(len(self.places))))

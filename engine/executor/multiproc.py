"""The executor with one process for each rank: plans go out over shared memory, answers come back over it."""

import os
import time
from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

from vllm_obs.engine.child import Child, spawn
from vllm_obs.engine.codec_arrays import Buffer
from vllm_obs.engine.config import VllmConfig, to_wire
from vllm_obs.engine.executor.broadcast import BroadcastExecutor
from vllm_obs.engine.executor.reply_thread import ReplyThread
from vllm_obs.engine.executor.shm_queue import ShmQueueWriter
from vllm_obs.engine.executor.shm_ring import QueueHandle, create_queue
from vllm_obs.engine.executor.worker_process import WorkerSetup
from vllm_obs.engine.group_setup import GroupSetup, create_sums
from vllm_obs.telemetry.recorder import ProcessRecorder

WORKER_MODULE = "vllm_obs.engine.executor.worker_process"
PLAN_TIMEOUT_SECONDS = 10.0
"""How long a plan may wait for a rank that does not read."""
STOP_TIMEOUT_SECONDS = 3.0


class Queues(NamedTuple):
    """One queue of plans that every rank reads, and one of replies from each; all without a name to clean up."""

    plans: QueueHandle
    replies: list[QueueHandle]

    @classmethod
    def create(cls, ranks: Sequence[int], num_shards: int) -> "Queues":
        """The queues for these ranks, of stages with so many shards.

        The first shard of a stage wakes the others, who cannot do without it anyway: a wake-up costs the writer
        some microseconds, and the core that it is on. Stages wait for no other.
        """
        first, event_fds, relays = os.eventfd(0), list[int](), list[int]()
        for _, shards in groupby(ranks, lambda rank: rank // num_shards):
            num_here = len(list(shards))
            others = os.eventfd(0) if num_here > 1 else -1
            event_fds += [first, *[others] * (num_here - 1)]
            relays += [others, *[-1] * (num_here - 1)]
        plans = create_queue(tuple(event_fds), relays=tuple(relays))
        woken_by = (os.eventfd(0),)
        return cls(plans, [create_queue(woken_by) for _ in ranks])

    def close(self) -> None:
        """Close this process's descriptors."""
        for fd in {fd for queue in (self.plans, *self.replies) for fd in queue.fds}:
            os.close(fd)


class MultiprocExecutor(BroadcastExecutor):
    """Plans go out over one queue in shared memory, which all ranks read; each has one for its replies."""

    def __init__(self, config: VllmConfig, recorder: ProcessRecorder, module: str = WORKER_MODULE) -> None:
        super().__init__(config, recorder)
        self._module = module
        self._children: list[Child] = []
        self._ranks = range(config.parallel.world_size // config.parallel.nnodes)
        """Those of this host, which is the first."""
        self._queues = Queues.create(self._ranks, config.parallel.tensor_parallel_size)
        self._meeting_fd = os.memfd_create("vllm-obs-ranks", os.MFD_CLOEXEC)
        self._sums_fd = create_sums(config.parallel.pipeline_parallel_size, config.parallel.tensor_parallel_size)
        self._plans = ShmQueueWriter(self._queues.plans)
        self._replies = ReplyThread(self._queues.replies, self._calls, self._fail)
        self._replies.start()

    def _close(self) -> None:
        for child in self._children:
            child.ask_to_stop()
        deadline = time.monotonic() + STOP_TIMEOUT_SECONDS
        for child in self._children:
            child.stop(max(0.0, deadline - time.monotonic()))
        self._replies.stop()
        self._plans.close()
        self._queues.close()
        os.close(self._meeting_fd)
        os.close(self._sums_fd)

    def _spawn_ranks(self) -> None:
        for rank in self._ranks:
            child = self._spawn(rank)
            self._children.append(child)
            child.on_exit(self._fail)

    def _spawn(self, rank: int) -> Child:
        replies = self._queues.replies[rank]
        setup = WorkerSetup(self._config, rank, self._queues.plans, replies, group=self._group_setup(rank))
        fds = [*self._queues.plans.fds, *replies.fds, self._meeting_fd, self._sums_fd]
        return spawn(self._module, self._titles[rank], to_wire(setup), fds)

    def _group_setup(self, rank: int) -> GroupSetup:
        """Ranks of one host meet in memory without a name, as their queues are: there is nothing to clean up."""
        meeting = f"file:///proc/self/fd/{self._meeting_fd}"
        return GroupSetup(rank, len(self._titles), meeting, sums_fd=self._sums_fd)

    def _messages(self, kind: str) -> list[Any]:
        return [child.message(kind) for child in self._children]

    def _write(self, frames: list[Buffer]) -> None:
        self._plans.write(frames, PLAN_TIMEOUT_SECONDS)

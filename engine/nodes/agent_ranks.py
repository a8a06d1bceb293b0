"""AgentRanks: the ranks of one engine that this host runs, and their queues."""

import os
import time
from collections.abc import Callable
from functools import partial
from queue import Queue
from typing import Any, NamedTuple, Protocol

from vllm_obs.engine.child import Child, spawn
from vllm_obs.engine.child_pipe import READY
from vllm_obs.engine.codec_arrays import Buffer
from vllm_obs.engine.config import VllmConfig, to_wire
from vllm_obs.engine.errors import ConfigError, StartupError
from vllm_obs.engine.executor.commands import LOADED, rank_title
from vllm_obs.engine.executor.multiproc import WORKER_MODULE, Queues
from vllm_obs.engine.executor.worker_process import WorkerSetup
from vllm_obs.engine.group_setup import create_sums
from vllm_obs.engine.nodes.network import group_over_hosts
from vllm_obs.engine.nodes.node_messages import FromRank, NodeMessage, RankSaid
from vllm_obs.engine.nodes.relays import CommandRelay, ReplyRelay

STOP_SECONDS = 1.0
"""The engine that had them is gone, and so is what they were doing."""


class Send(Protocol):
    """Sends host 0 a message, from any thread."""

    def __call__(self, message: NodeMessage, body: Buffer = b"") -> None: ...


class Links(NamedTuple):
    """What connects ranks with host 0: commands for them, in order, what they say, and what goes wrong with them.

    `fail(cause, exit_code)` is called from any thread, for each rank that ends, and for a queue that breaks.
    """

    commands: "Queue[bytes]"
    send: Send
    fail: Callable[[str, int], None]


class AgentRanks:
    """Starts the ranks at once, and passes on what they say and what is said to them.

    Made in the main thread, if possible: the kernel ends a rank with the thread that started it.
    """

    def __init__(self, config: VllmConfig, ranks: range, links: Links, module: str = WORKER_MODULE) -> None:
        self.children: dict[int, Child] = {}
        self._config = config
        self._module = module
        self._send = links.send
        self._fail = links.fail
        self._ranks = ranks
        parallel = config.parallel
        self._queues = Queues.create(self._ranks, parallel.tensor_parallel_size)
        self._sums_fd = create_sums(parallel.pipeline_parallel_size, parallel.tensor_parallel_size)
        queues = dict(zip(self._ranks, self._queues.replies, strict=True))

        def broken(cause: str) -> None:
            links.fail(cause, StartupError.exit_code)

        self._titles = {rank: rank_title(rank, config) for rank in self._ranks}
        self._relays: list[CommandRelay | ReplyRelay] = [
            CommandRelay(links.commands, self._queues.plans, list(self._titles.values()), broken),
            ReplyRelay(queues, lambda rank, body: links.send(FromRank(rank), body), broken),
        ]
        for rank in self._ranks:
            self._start(rank)

    def stop(self) -> None:
        """End the ranks, and let go of the queues. Idempotent."""
        for child in self.children.values():
            child.ask_to_stop()
        deadline = time.monotonic() + STOP_SECONDS
        for child in self.children.values():
            child.stop(max(0.0, deadline - time.monotonic()))
        for relay in self._relays:
            relay.stop()
        if self._relays:
            self._queues.close()
            os.close(self._sums_fd)
        self._relays = []

    def _start(self, rank: int) -> None:
        replies = self._queues.replies[rank - self._ranks[0]]
        group = group_over_hosts(self._config.parallel, rank, self._sums_fd)
        setup = WorkerSetup(
            self._config, rank, self._queues.plans, replies, first_rank=self._ranks[0], group=group
        )
        fds = [*self._queues.plans.fds, *replies.fds, self._sums_fd]
        child = self.children[rank] = spawn(self._module, self._titles[rank], to_wire(setup), fds)
        for kind in (LOADED, READY):
            child.on_message(kind, partial(self._said, rank, kind))
        child.on_exit(partial(self._ended, child))

    def _said(self, rank: int, kind: str, payload: Any) -> None:
        self._send(RankSaid(rank, kind, payload))

    def _ended(self, child: Child, cause: str) -> None:
        if child.was_told:
            return
        try:
            child.require_life()
        except ConfigError as error:
            self._fail(str(error), ConfigError.exit_code)
        except StartupError as error:
            self._fail(str(error), StartupError.exit_code)

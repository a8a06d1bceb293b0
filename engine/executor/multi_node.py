"""The executor over several hosts: this host's ranks as its own children, the others' through their agents."""

import time
from typing import Any, cast

from vllm_obs.engine.codec_arrays import Buffer
from vllm_obs.engine.codec_plain import WireError
from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.errors import StartupError
from vllm_obs.engine.executor.commands import Reply, decode
from vllm_obs.engine.executor.interface import KVCapacity
from vllm_obs.engine.executor.moments import by_our_clock
from vllm_obs.engine.executor.multiproc import WORKER_MODULE, MultiprocExecutor
from vllm_obs.engine.executor.shm_queue import join_frames, split_frames
from vllm_obs.engine.executor.shm_ring import ShmQueueError
from vllm_obs.engine.group_setup import GroupSetup
from vllm_obs.engine.nodes.network import group_over_hosts
from vllm_obs.engine.nodes.node_line import LineFullError
from vllm_obs.engine.nodes.node_mirrors import NodeMirrors
from vllm_obs.engine.nodes.remote_nodes import RemoteNodes
from vllm_obs.telemetry.recorder import ProcessRecorder


class MultiNodeExecutor(MultiprocExecutor):
    """Broadcasts each call to the ranks of all hosts; a host that is lost fails every call, and is named.

    Agents may come from its making on, and have `node_timeout` for it. ConfigError where it cannot listen.
    """

    def __init__(self, config: VllmConfig, recorder: ProcessRecorder, module: str = WORKER_MODULE) -> None:
        super().__init__(config, recorder, module)
        self._made_at = time.monotonic()
        self._is_started = False
        self._mirrors = NodeMirrors(config.run_dir)
        try:
            self._nodes = RemoteNodes(config, self)
        except BaseException:
            self._mirrors.close()
            super()._close()
            raise

    def replied(self, rank: int, body: bytes, offset_ns: int) -> None:
        """A rank of another host answered, whose clock is so far behind ours."""
        try:
            self._take(rank, cast(Reply, decode(split_frames(body))), offset_ns)
        except (WireError, ShmQueueError) as error:
            self._fail(f"rank {rank} sent a reply that cannot be read: {error}")

    def ring_positions(self, host: str) -> bytes:
        """What is here already of another host's records."""
        return self._mirrors.positions(host)

    def recorded(self, host: str, body: bytes, offset_ns: int) -> None:
        """What was recorded on another host."""
        self._mirrors.write(host, body, offset_ns)

    def failed(self, cause: str) -> None:
        """Another host, or a rank there, is lost."""
        self._fail(cause)

    def _close(self) -> None:
        """The agents are told that no other engine will come, if this one was told to end."""
        self._nodes.stop(is_farewell=self._is_started)
        super()._close()
        self._mirrors.close()

    def _start_ranks(self) -> KVCapacity:
        capacity = super()._start_ranks()
        self._is_started = True
        return capacity

    def _messages(self, kind: str) -> list[Any]:
        remote = self._nodes.messages(kind)
        missing, timeout = self._nodes.missing(), self._config.parallel.node_timeout
        if missing and time.monotonic() - self._made_at > timeout:
            parallel = self._config.parallel
            where = f"{parallel.master_addr}, port {parallel.master_port + 1}"
            raise StartupError(
                f"{', '.join(missing)} did not come within {timeout:g} s (--node-timeout) to {where}: "
                "start vllm-obs serve --headless there, with the same --master-addr"
            )
        others = range(len(self._ranks), self._config.parallel.world_size)
        return [*super()._messages(kind), *(remote.get(rank) for rank in others)]

    def _write(self, frames: list[Buffer]) -> None:
        super()._write(frames)
        try:
            self._nodes.broadcast(join_frames(frames))
        except LineFullError as error:
            self._fail(f"a host takes no plans: {error}")

    def _group_setup(self, rank: int) -> GroupSetup:
        return group_over_hosts(self._config.parallel, rank, self._sums_fd)

    def _take(self, rank: int, reply: Reply, offset_ns: int) -> None:
        if cause := self._calls.take(rank, by_our_clock(reply, offset_ns)):
            self._fail(cause)

"""The executor over Ray: one actor for each rank, on the hosts that Ray has."""

import contextlib
import logging
import time
from dataclasses import replace
from typing import Any, cast

import msgpack

import vllm_obs
from vllm_obs.engine.codec_arrays import Buffer
from vllm_obs.engine.codec_plain import WireError
from vllm_obs.engine.config import VllmConfig, to_wire
from vllm_obs.engine.errors import ConfigError, StartupError
from vllm_obs.engine.executor.broadcast import BroadcastExecutor
from vllm_obs.engine.executor.commands import Reply, decode
from vllm_obs.engine.executor.moments import by_our_clock
from vllm_obs.engine.executor.multiproc import WORKER_MODULE
from vllm_obs.engine.executor.ray_news import RayNews, RaySeat
from vllm_obs.engine.executor.ray_port import (
    ActorCallError,
    ActorLostError,
    Group,
    RayPort,
    RealRay,
    Reference,
    within,
)
from vllm_obs.engine.executor.ray_rank import RayRank, Whereabouts
from vllm_obs.engine.executor.ray_records import RayRecords
from vllm_obs.engine.executor.shm_queue import join_frames, split_frames
from vllm_obs.engine.executor.shm_ring import ShmQueueError
from vllm_obs.engine.nodes.node_mirrors import NodeMirrors
from vllm_obs.telemetry.recorder import ProcessRecorder

START_SECONDS = 30.0
STOP_SECONDS = 3.0
"""How long the actors may take to end their ranks, before they are ended with them."""

_logger = logging.getLogger(__name__)


class RayExecutor(BroadcastExecutor):
    """Commands go to each actor in order; what ranks say comes back by asking the actors for news all the time.

    An actor that dies, or is silent for too long, fails every call, and is named with its host. ConfigError or
    StartupError says what is missing: Ray, a cluster, or places in it.
    """

    def __init__(
        self,
        config: VllmConfig,
        recorder: ProcessRecorder,
        port: RayPort | None = None,
        module: str = WORKER_MODULE,
    ) -> None:
        super().__init__(config, recorder)
        self._port = port or RealRay()
        self._module = module
        self._resource = "GPU" if config.model.device == "cuda" else "CPU"
        self._groups: list[Group] = []
        self._seats: list[RaySeat] = []
        self._num_commands = 0
        self._mirrors = NodeMirrors(config.run_dir)
        self._news = RayNews(self._port, self)
        self._records = RayRecords(self._port, self._mirrors)

    def replied(self, rank: int, body: bytes, offset_ns: int) -> None:
        """A rank answered, whose clock is so far behind ours."""
        try:
            reply = cast(Reply, decode(split_frames(body)))
        except (WireError, ShmQueueError) as error:
            self._fail(f"{self._titles[rank]} sent a reply that cannot be read: {error}")
            return
        if cause := self._calls.take(rank, by_our_clock(reply, offset_ns)):
            self._fail(cause)

    def failed(self, cause: str) -> None:
        """A rank or its actor is lost."""
        self._fail(cause)

    def overdue(self) -> None:
        """Twice a second: fail where a call has waited for longer than it may."""
        if cause := self._calls.overdue():
            self._fail(cause)

    def _spawn_ranks(self) -> None:
        self._port.connect()
        deadline = time.monotonic() + self._config.parallel.node_timeout
        self._take_places(deadline)
        per_group = self._config.parallel.world_size // len(self._groups)
        for rank, title in enumerate(self._titles):
            place = (self._groups[rank // per_group], rank % per_group, self._resource)
            actor = self._port.actor(RayRank, (rank, self._module), place)
            self._seats.append(RaySeat(rank, title, actor))
        self._find_out_where(deadline)
        run_dirs = self._start_actors()
        self._news.start(self._seats)
        if self._config.run_dir:
            self._records.start(self._seats, run_dirs)

    def _start_actors(self) -> dict[int, str]:
        """Have each actor start its rank, which takes no time: the rank loads by itself. Where each records."""
        started: list[Reference] = []
        run_dirs: dict[int, str] = {}
        for seat in self._seats:
            config = msgpack.packb(to_wire(self._config_of(seat.rank)))
            started.append(self._port.call(seat.actor, "start", config))
        for seat, reference in zip(self._seats, started, strict=True):
            try:
                run_dirs[seat.rank] = self._port.result(reference, START_SECONDS)
            except (TimeoutError, ActorLostError, ActorCallError) as error:
                raise StartupError(f"{seat.title} cannot be started on {seat.where.hostname}: {error}") from None
            seat.seen_at = time.monotonic()
        return run_dirs

    def _stop_actors(self) -> None:
        """Have each actor end its rank and close its run directory; what is not done in time ends with it."""

        def act() -> None:
            stopped = [self._port.call(seat.actor, "stop") for seat in self._seats]
            for reference in stopped:
                with contextlib.suppress(ActorLostError, ActorCallError):
                    self._port.result(reference, STOP_SECONDS)

        if self._seats:
            try:
                within(STOP_SECONDS, act)
            except Exception as error:
                _logger.warning("not all ranks ended by themselves: %s", type(error).__name__)

    def _take_places(self, deadline: float) -> None:
        """A placement group for each stage: its shards exchange far more than stages do. StartupError."""
        parallel = self._config.parallel
        num_groups = parallel.pipeline_parallel_size
        num_places = parallel.world_size // num_groups
        self._check_totals()
        is_one_host = self._port.largest_host(self._resource) >= num_places
        for _ in range(num_groups):
            self._groups.append(self._port.group(self._resource, num_places, is_one_host))
        for group in self._groups:
            if not self._port.has_places(group, max(0.0, deadline - time.monotonic())):
                raise StartupError(self._missing(f"not there within {parallel.node_timeout:g} s"))

    def _check_totals(self) -> None:
        """What the cluster never had it will not have soon; but after a failure a host may come back."""
        total, _ = self._port.resources()
        if total.get(self._resource, 0) >= self._config.parallel.world_size:
            return
        if self._config.generation == 0:
            raise StartupError(self._missing("more than the cluster has"))
        _logger.warning("%s", self._missing("waiting for them"))

    def _missing(self, why: str) -> str:
        total, free = (counts.get(self._resource, 0) for counts in self._port.resources())
        wanted = self._config.parallel.world_size
        places = f"{wanted} {self._resource}s of Ray are wanted, one for each rank"
        return f"{places}; it has {total:g}, of which {free:g} are free: {why}"

    def _find_out_where(self, deadline: float) -> None:
        references = [self._port.call(seat.actor, "where") for seat in self._seats]
        for seat, reference in zip(self._seats, references, strict=True):
            try:
                found = Whereabouts(*self._port.result(reference, max(1.0, deadline - time.monotonic())))
            except TimeoutError:
                raise StartupError(f"the actor of {seat.title} did not start in time") from None
            except ActorLostError as error:
                raise StartupError(f"the actor of {seat.title} did not start: {error}") from None
            if found.version != vllm_obs.__version__:
                raise ConfigError(
                    f"{found.hostname} has vllm-obs {found.version}, this host {vllm_obs.__version__}: install one"
                )
            seat.place(found)
            _logger.info("%s runs on %s (%s)", seat.title, found.hostname, found.address)

    def _config_of(self, rank: int) -> VllmConfig:
        """Each rank is a host of its own to itself; they meet at the first one's."""
        first = self._seats[0].where
        parallel = replace(
            self._config.parallel,
            nnodes=self._config.parallel.world_size,
            node_rank=rank,
            master_addr=first.address,
            master_port=first.free_port,
        )
        return replace(self._config, parallel=parallel)

    def _messages(self, kind: str) -> list[Any]:
        self._news.require_life()
        return [seat.said.get(kind) for seat in self._seats]

    def _write(self, frames: list[Buffer]) -> None:
        body = join_frames(frames)
        number = self._num_commands + 1
        for seat in self._seats:
            self._port.call(seat.actor, "command", number, body)
        self._num_commands = number  # where only some have it, those see it again, and say so

    def _close(self) -> None:
        self._news.stop()
        self._stop_actors()
        self._records.stop()
        self._port.remove([*self._records.actors, *(seat.actor for seat in self._seats)], self._groups)
        self._port.disconnect()
        self._mirrors.close()

"""The ranks of one engine as a process group: how they meet, and what they exchange while a step runs."""

import logging
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, PrefixStore, Store, TCPStore

from vllm_obs.engine.errors import StartupError
from vllm_obs.engine.group_setup import GroupSetup, PeerLostError
from vllm_obs.engine.model.partition import Partition
from vllm_obs.engine.worker.shared_sums import SharedSums, has_ordered_stores

STAGE_PATIENCE = 1.5
"""A stage waits so much longer than a shard: the stage before has to come to its end, and its shards wait too."""
MAX_DIRECT_BYTES = 8 << 20
"""What a shard sends to all others at once, and not in turns: beyond that bytes count, and not hops."""
_TAG = 0

T = TypeVar("T")

_logger = logging.getLogger(__name__)


class RankGroup:
    """Peers over torch.distributed: gloo between CPUs, NCCL between GPUs, in groups of their own.

    Shards on the CPUs of one host exchange in memory that they share, if they are given any. Used from one thread.
    On a GPU exchanges are only queued, so that next to no time goes by in them here.
    """

    def __init__(self, setup: GroupSetup, partition: Partition, device: torch.device) -> None:
        """Meet the others: returns when all have come. StartupError when they do not within the deadline."""
        self._exchange_ns = 0
        self._setup = setup
        self._partition = partition
        self._is_cuda = device.type == "cuda"
        first = partition.stage * partition.num_shards
        self._shard_ranks = list(range(first, first + partition.num_shards))
        self._stage_ranks = list(range(partition.shard, setup.world_size, partition.num_shards))
        self._sent: tuple[Any, torch.Tensor] | None = None
        self._sums: SharedSums | None = None
        if setup.sums_fd >= 0 and partition.num_shards > 1 and not self._is_cuda and has_ordered_stores():
            ranks, patience = self._shard_ranks, setup.deadline_seconds
            self._sums = SharedSums(setup.sums_fd, partition.stage, ranks, setup.rank, patience)
        try:
            self._shards, self._stages = self._meet(setup)
        except (RuntimeError, OSError) as error:
            raise StartupError(f"rank {setup.rank} cannot meet the others at {setup.meeting}: {error}") from None

    def total(self, part: torch.Tensor) -> torch.Tensor:
        """The sum of the parts of all shards. Between CPUs it is made in float32, the same to the bit on each."""
        if self._is_cuda:
            return self._all_reduced(part.contiguous())
        own = part.float().contiguous()
        if self._sums is not None:
            return self._timed(lambda sums: sums.total(own)).to(part.dtype)
        num_others = len(self._shard_ranks) - 1
        if own.nbytes * num_others > MAX_DIRECT_BYTES:
            return self._all_reduced(own).to(part.dtype)
        first, second, *others = self._exchanged(own)
        summed = first + second
        for other in others:
            summed += other
        return summed.to(part.dtype)

    def gathered(self, part: torch.Tensor) -> list[torch.Tensor]:
        """Every shard's part in order, on the first shard; on the others nothing."""
        part = part.contiguous()
        if self._sums is not None:
            return self._timed(lambda sums: sums.gathered(part))
        shards = range(len(self._shard_ranks))
        if self._partition.shard:
            self._wait_for(self._shards.send([part], 0, _TAG).wait, self._shard_ranks[:1])
            return []
        parts = [part, *(torch.empty_like(part) for _ in shards[1:])]
        works = [self._shards.recv([parts[shard]], shard, _TAG) for shard in shards[1:]]
        for shard, work in zip(shards[1:], works, strict=True):
            self._wait_for(work.wait, [self._shard_ranks[shard]])
        return parts

    def send(self, states: torch.Tensor) -> None:
        """Hand these on to the next stage: it takes them when it comes to them, meanwhile this stage may go on.

        One step may be on its way: with the next it is waited for.
        """
        stage = self._partition.stage + 1
        states = states.contiguous()
        self._finish_sending()
        self._sent = (self._stages.send([states], stage, _TAG), states)

    def receive(self, shape: tuple[int, int], device: torch.device) -> torch.Tensor:
        """What the stage before handed on, float32."""
        stage = self._partition.stage - 1
        states = torch.empty(shape, device=device)
        self._exchange(lambda: self._stages.recv([states], stage, _TAG), [self._stage_ranks[stage]])
        return states

    def take_exchange_ns(self) -> int:
        """How long this rank was in exchanges since this was asked last."""
        exchange_ns, self._exchange_ns = self._exchange_ns, 0
        return exchange_ns

    def _exchanged(self, own: torch.Tensor) -> list[torch.Tensor]:
        """Every shard's part in order: each is sent to each.

        For what is small this takes a fraction of the time of gloo's own collectives, which go from one to the
        next by way of a thread on each; and it names whoever does not come.
        """
        others = [shard for shard in range(len(self._shard_ranks)) if shard != self._partition.shard]
        parts = [torch.empty_like(own) if shard in others else own for shard in range(len(self._shard_ranks))]
        works = [(shard, self._shards.recv([parts[shard]], shard, _TAG)) for shard in others]
        works += [(shard, self._shards.send([own], shard, _TAG)) for shard in others]
        for shard, work in works:
            self._wait_for(work.wait, [self._shard_ranks[shard]])
        return parts

    def _all_reduced(self, part: torch.Tensor) -> torch.Tensor:
        self._exchange(lambda: self._shards.allreduce([part]), self._shard_ranks)
        return part

    def _finish_sending(self) -> None:
        if self._sent is not None:
            (work, _), self._sent = self._sent, None
            self._wait_for(work.wait, [self._stage_ranks[self._partition.stage + 1]])

    def _timed(self, act: Callable[[SharedSums], T]) -> T:
        assert self._sums is not None
        begun_at = time.monotonic_ns()
        try:
            return act(self._sums)
        finally:
            self._exchange_ns += time.monotonic_ns() - begun_at

    def _exchange(self, begin: Callable[[], Any], ranks: list[int]) -> None:
        self._wait_for(lambda: begin().wait(), ranks)

    def _wait_for(self, wait: Callable[[], T], ranks: list[int]) -> T:
        begun_at = time.monotonic_ns()
        try:
            return wait()
        except RuntimeError as error:
            _logger.error("an exchange failed: %s", str(error))  # with addresses in it, which go no further
            others = [rank for rank in ranks if rank != self._setup.rank]
            seconds, names = (time.monotonic_ns() - begun_at) / 1e9, ", ".join(f"rank {rank}" for rank in others)
            what = "in vain" if "Timed out" in str(error) else "until the connection was lost"
            message = f"rank {self._setup.rank} waited {seconds:.1f} s for {names}, {what}"
            raise PeerLostError(message, others) from None
        finally:
            self._exchange_ns += time.monotonic_ns() - begun_at

    def _meet(self, setup: GroupSetup) -> tuple[Any, Any]:
        """The group of this stage's shards, and the group of this shard's stages."""
        store = _open_store(setup)
        _gather_all(store, setup)
        partition = self._partition
        shards = _Party(f"shards-{partition.stage}", partition.shard, partition.num_shards, setup.deadline_seconds)
        patience = setup.deadline_seconds * STAGE_PATIENCE
        stages = _Party(f"stages-{partition.shard}", partition.stage, partition.num_stages, patience)
        make = _nccl_group if self._is_cuda else _gloo_group
        has_group = shards.size > 1 and self._sums is None
        shard_group = make(shards, store, setup) if has_group else None
        return shard_group, make(stages, store, setup) if stages.size > 1 else None


@dataclass(frozen=True)
class _Party:
    """A group of ranks: its name, this rank's place in it, and how long one may wait for another."""

    name: str
    place: int
    size: int
    seconds: float


def _open_store(setup: GroupSetup) -> Store:
    """Where ranks leave each other their addresses. A FileStore may lie in memory that has no name."""
    scheme, _, rest = setup.meeting.partition("://")
    store = _tcp_store(rest, setup) if scheme == "tcp" else FileStore(rest, setup.world_size)
    store.set_timeout(timedelta(seconds=setup.meeting_seconds))
    return store


def _tcp_store(place: str, setup: GroupSetup) -> Store:
    """Rank 0 has it, and listens at that address only: torch by itself would listen at all of them."""
    host, _, port = place.rpartition(":")
    host = host.strip("[]")
    options: dict[str, Any] = {"world_size": setup.world_size, "timeout": timedelta(seconds=setup.meeting_seconds)}
    if setup.rank == 0:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, int(port)), family=family)
        options |= {"is_master": True, "wait_for_workers": False, "master_listen_fd": listener.detach()}
    return TCPStore(host, int(port), **options)


def _gather_all(store: Store, setup: GroupSetup) -> None:
    """Wait until every rank has come: connecting has only the deadline of an exchange."""
    store.set(f"here-{setup.rank}", "1")
    try:
        store.wait([f"here-{rank}" for rank in range(setup.world_size)])
    except RuntimeError:
        late = [rank for rank in range(setup.world_size) if not store.check([f"here-{rank}"])]
        raise StartupError(
            f"{', '.join(f'rank {rank}' for rank in late)} of {setup.world_size} did not come to meet the others "
            f"within {setup.meeting_seconds:g} s"
        ) from None


def _gloo_group(party: _Party, store: Store, setup: GroupSetup) -> Any:
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=setup.own_address)]
    options._threads = 1
    options._timeout = timedelta(seconds=party.seconds)
    return gloo(PrefixStore(party.name, store), party.place, party.size, options)


def _nccl_group(party: _Party, store: Store, setup: GroupSetup) -> Any:
    nccl: Any = dist.ProcessGroupNCCL  # only where torch was built for GPUs
    options = nccl.Options()
    options._timeout = timedelta(seconds=party.seconds)
    return nccl(PrefixStore(party.name, store), party.place, party.size, options)

"""Ranks over real gloo, each a thread here: what they exchange, and that nobody waits for ever."""

import gc
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from vllm_obs.engine.errors import StartupError
from vllm_obs.engine.group_setup import GroupSetup, PeerLostError, sums_bytes
from vllm_obs.engine.model.partition import Partition
from vllm_obs.engine.worker import process_group
from vllm_obs.engine.worker.process_group import RankGroup

CPU = torch.device("cpu")
Run = Callable[..., list[Any]]


@pytest.fixture
def meeting() -> Iterator[str]:
    fd = os.memfd_create("ranks")
    yield f"file:///proc/self/fd/{fd}"
    # A FileStore opens its file once more when it goes, and ends the process where that number is a socket's by
    # then. Errors that ranks raised hold it in cycles. (A worker has the descriptor for as long as it lives.)
    gc.collect()
    assert not [each for each in gc.get_objects() if type(each) is RankGroup]
    os.close(fd)


@pytest.fixture(params=["sockets", "memory"])
def run(meeting: str, request: pytest.FixtureRequest) -> Iterator[Run]:
    """`run(num_shards, num_stages, act)`: what `act(group, partition)` returns on each rank, or what it raised."""

    def all_ranks(
        num_shards: int, num_stages: int, act: Callable[[RankGroup, Partition], Any], **setup: Any
    ) -> list[Any]:
        world_size = num_shards * num_stages
        os.ftruncate(memory_fd, num_stages * sums_bytes(num_shards))
        setup["sums_fd"] = memory_fd if request.param == "memory" else -1
        groups: list[RankGroup] = []  # a group that is gone takes with it what it was sending

        def one(rank: int) -> Any:
            partition = Partition(rank % num_shards, num_shards, rank // num_shards, num_stages)
            try:
                groups.append(group := RankGroup(GroupSetup(rank, world_size, meeting, **setup), partition, CPU))
                return act(group, partition)
            except Exception as error:
                return error

        with ThreadPoolExecutor(world_size) as pool:
            return list(pool.map(one, range(world_size)))

    memory_fd = os.memfd_create("sums")
    yield all_ranks
    os.close(memory_fd)


def test_shards_get_the_sum_and_the_first_gets_every_part(run: Run) -> None:
    def act(group: RankGroup, partition: Partition) -> Any:
        total = group.total(torch.full((2, 3), float(partition.shard + 1)))
        parts = group.gathered(torch.tensor([[10.0 * partition.shard]]))
        assert group.take_exchange_ns() > 0
        assert group.take_exchange_ns() == 0
        return total[0].tolist(), [part.item() for part in parts]

    assert run(3, 1, act) == [([6.0] * 3, [0.0, 10.0, 20.0]), ([6.0] * 3, []), ([6.0] * 3, [])]


def test_what_is_larger_than_a_slot_goes_in_pieces(run: Run) -> None:
    def act(group: RankGroup, partition: Partition) -> Any:
        totals = [group.total(torch.arange(700_000.0) + step) for step in range(3)]
        parts = group.gathered(torch.full((3, 200_000), float(partition.shard)))
        again = group.gathered(torch.full((2, 2), 5.0 + partition.shard))
        wanted = torch.arange(700_000.0) * 2
        are_right = [torch.equal(total, wanted + 2 * step) for step, total in enumerate(totals)]
        return are_right, [part.unique().tolist() for part in (*parts, *again)]

    assert run(2, 1, act) == [([True] * 3, [[0.0], [1.0], [5.0], [6.0]]), ([True] * 3, [])]


def test_a_large_sum_goes_round(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_group, "MAX_DIRECT_BYTES", 7)
    assert run(3, 1, lambda group, _: group.total(torch.ones(2)).tolist()) == [[3.0, 3.0]] * 3


def test_a_sum_of_short_numbers_keeps_their_type(run: Run) -> None:
    def act(group: RankGroup, partition: Partition) -> Any:
        total = group.total(torch.full((2,), 0.5, dtype=torch.bfloat16))
        return total.dtype, total.tolist()

    assert run(2, 1, act) == [(torch.bfloat16, [1.0, 1.0])] * 2


def test_stages_hand_on_several_steps_in_order(run: Run) -> None:
    def act(group: RankGroup, partition: Partition) -> Any:
        found = []
        for step in range(3):
            states = torch.full((1 + step, 2), 100.0 * step + partition.shard)
            if not partition.is_first_stage:
                states = group.receive((1 + step, 2), CPU) + 1
            if not partition.is_last_stage:
                group.send(states)
            found.append(states[0, 0].item())
        return found

    first, last = [0.0, 100.0, 200.0], [2.0, 102.0, 202.0]
    answers = run(2, 3, act)
    assert (answers[0], answers[4]) == (first, last)
    assert (answers[1], answers[5]) == ([n + 1 for n in first], [n + 1 for n in last])


def test_a_rank_that_does_not_come_is_named_when_the_deadline_is_over(run: Run) -> None:
    is_over = threading.Event()

    def act(group: RankGroup, partition: Partition) -> Any:
        if partition.shard == 1:
            return is_over.wait(20.0)
        try:
            return group.total(torch.ones(2))
        finally:
            is_over.set()

    waited, stood_still = run(2, 1, act, deadline_seconds=0.3)
    assert stood_still is True
    assert isinstance(waited, PeerLostError)
    assert waited.waited_for == [1]
    assert re.fullmatch(r"rank 0 waited \d\.\d s for rank 1, in vain", str(waited))


def test_a_stage_waits_longer_than_a_shard(run: Run) -> None:
    def act(group: RankGroup, partition: Partition) -> Any:
        if partition.stage == 0:
            threading.Event().wait(0.5)
            group.send(torch.ones(1, 2))
            return None
        return group.receive((1, 2), CPU).tolist()

    assert run(1, 2, act, deadline_seconds=0.45)[1] == [[1.0, 1.0]]


def test_who_has_not_come_to_the_meeting_is_named(meeting: str) -> None:
    setup = GroupSetup(1, 3, meeting, meeting_seconds=0.3)
    with pytest.raises(StartupError, match=r"rank 0, rank 2 of 3 did not come to meet the others within 0.3 s"):
        RankGroup(setup, Partition(1, 3), CPU)


def test_a_place_where_nobody_listens_is_named() -> None:
    setup = GroupSetup(1, 2, "tcp://127.0.0.1:1", meeting_seconds=0.3)
    with pytest.raises(StartupError, match=r"rank 1 cannot meet the others at tcp://127.0.0.1:1"):
        RankGroup(setup, Partition(1, 2), CPU)


def test_ranks_may_meet_at_a_port() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = f"tcp://127.0.0.1:{free.getsockname()[1]}"

    def one(rank: int) -> Any:
        group = RankGroup(GroupSetup(rank, 2, meeting, meeting_seconds=20.0), Partition(rank, 2), CPU)
        return group, group.total(torch.ones(1)).item()

    with ThreadPoolExecutor(2) as pool:
        assert [total for _, total in pool.map(one, range(2))] == [2.0, 2.0]

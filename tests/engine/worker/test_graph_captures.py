"""Graphs are captured in one order on every shard, and kept where all shards have them."""

from collections.abc import Callable

import pytest
import torch
from fake_graphs import FakeMaker
from thread_peers import ThreadRanks

from vllm_obs.engine.worker.graph_captures import Captured, Captures, Outcome, Shards

SIZES = [1, 2, 4, 8]
CPU = torch.device("cpu")


def work_of(size: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.ones(size)


def captured(makers: list[FakeMaker]) -> list[dict[int, Captured]]:
    ranks = ThreadRanks(len(makers), 1)

    def capture(rank: int) -> dict[int, Captured]:
        shards = Shards.of(ranks.places[rank].peers, len(makers), CPU)
        return Captures(makers[rank], shards).of(work_of, SIZES)

    return ranks.run(capture)


def test_every_shard_rehearses_and_captures_in_the_same_order() -> None:
    makers = [FakeMaker() for _ in range(3)]
    assert [sorted(each) for each in captured(makers)] == [SIZES] * 3
    assert [(maker.num_rehearsed, maker.asked) for maker in makers] == [(4, [8, 4, 2, 1])] * 3


def test_what_has_no_room_on_one_shard_is_left_out_on_all(caplog: pytest.LogCaptureFixture) -> None:
    makers = [FakeMaker(), FakeMaker(num_rows=3)]
    assert [sorted(each) for each in captured(makers)] == [[1, 2]] * 2
    assert makers[0].asked == [8, 4, 2, 1]
    assert sum("No CUDA graph for 8 rows" in message for message in caplog.messages) == 2
    assert "No CUDA graph for 4 rows: another shard could not capture it" in caplog.messages


def test_what_is_broken_on_one_shard_ends_the_captures_of_all(caplog: pytest.LogCaptureFixture) -> None:
    makers = [FakeMaker(), FakeMaker(failure=RuntimeError("not permitted"))]
    assert captured(makers) == [{}, {}]
    assert [maker.asked for maker in makers] == [[8], [8]]
    assert sorted(caplog.messages) == [
        "No CUDA graph for 8 rows: another shard could not capture it",
        "No CUDA graphs, every step runs eagerly: a capture of 8 rows failed with RuntimeError: not permitted",
    ]


class NoRehearsal(FakeMaker):
    """Out of memory in the middle of the work."""

    def rehearse(self, work: object) -> None:
        raise torch.OutOfMemoryError("full")


def test_a_rehearsal_that_fails_is_no_graph_alone_and_an_error_among_shards() -> None:
    assert Captures(NoRehearsal()).of(work_of, SIZES) == {}
    shards = Shards(2, lambda own: own)
    with pytest.raises(torch.OutOfMemoryError, match="full"):
        Captures(NoRehearsal(), shards).of(work_of, SIZES)


def test_the_worst_outcome_counts_and_one_shard_asks_nobody() -> None:
    assert Shards.of(ThreadRanks(1, 1).places[0].peers, 1, CPU).agree(Outcome.NO_ROOM) == Outcome.NO_ROOM
    ranks, owns = ThreadRanks(3, 1), [Outcome.DONE, Outcome.BROKEN, Outcome.NO_ROOM]
    agreed = ranks.run(lambda rank: Shards.of(ranks.places[rank].peers, 3, CPU).agree(owns[rank]))
    assert agreed == [Outcome.BROKEN] * 3


def test_a_graph_that_the_driver_has_no_memory_for_is_one_without_room(caplog: pytest.LogCaptureFixture) -> None:
    maker = FakeMaker(failure=torch.AcceleratorError("CUDA error: out of memory"))
    assert Captures(maker).of(work_of, SIZES) == {}
    assert maker.asked == [8, 4, 2, 1]
    assert "or set --enforce-eager" in caplog.text
    assert "No CUDA graph for 1 rows: out of memory" in caplog.text

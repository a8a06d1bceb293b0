"""The deltas of a reader that lags: merged, and cut when there are too many tokens in them."""

import asyncio

import pytest
from in_loop import in_loop

from vllm_obs.engine.frontend import request_stream
from vllm_obs.engine.frontend.outputs import SequenceDelta, TokenLogprob
from vllm_obs.engine.frontend.request_stream import DeltaQueue


@pytest.fixture(autouse=True)
def ten_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_stream, "MAX_WAITING_TOKENS", 10)
    monkeypatch.setattr(request_stream, "MAX_WAITING_TOKENS_IN_ALL", 40)


def delta(index: int = 0, num_tokens: int = 1, num_top: int | None = None) -> SequenceDelta:
    made = SequenceDelta("a", index, "x" * num_tokens, [7] * num_tokens)
    if num_top is not None:
        made.logprobs = [TokenLogprob(7, -1.0, 1, [(8, -2.0, 2)] * num_top)] * num_tokens
    return made


class Cuts:
    """How often a queue asked to be cut."""

    def __init__(self) -> None:
        self.num = 0

    def __call__(self) -> None:
        self.num += 1


@in_loop
async def test_a_reader_that_lags_gets_one_delta_for_many() -> None:
    queue = DeltaQueue(1)
    for _ in range(1000):
        queue.put(delta())
    assert queue.num_waiting == 1
    read = await queue.get()
    assert read is not None
    assert (read.text, len(read.token_ids)) == ("x" * 1000, 1000)


@in_loop
async def test_a_stream_nobody_reads_is_cut_once_and_not_from_within() -> None:
    cuts = Cuts()
    queue = DeltaQueue(1, cuts)
    for _ in range(30):
        queue.put(delta())
    assert cuts.num == 0
    await asyncio.sleep(0)
    assert cuts.num == 1


@in_loop
async def test_what_was_read_does_not_count() -> None:
    cuts = Cuts()
    queue = DeltaQueue(2, cuts)
    for _ in range(20):
        for index in (0, 0, 0, 1):
            queue.put(delta(index))
        while queue.num_waiting:
            await queue.get()
    await asyncio.sleep(0)
    assert cuts.num == 0


@in_loop
async def test_alternatives_and_all_sequences_count() -> None:
    for indices, num_top in (((0, 0), 15), ((0, 0, 1, 1, 2, 2), 5)):
        cuts = Cuts()
        queue = DeltaQueue(3, cuts)
        for index in indices:
            queue.put(delta(index, num_top=num_top))
        await asyncio.sleep(0)
        assert cuts.num == 1, (indices, num_top)


@pytest.mark.parametrize(("num_sequences", "most"), [(1, 10), (3, 30), (4, 40), (256, 40)])
@in_loop
async def test_the_bound_grows_with_the_sequences_up_to_one_for_all(num_sequences: int, most: int) -> None:
    cuts = Cuts()
    queue = DeltaQueue(num_sequences, cuts)
    for _ in range(most):
        queue.put(delta())
    await asyncio.sleep(0)
    assert cuts.num == 0
    queue.put(delta())
    await asyncio.sleep(0)
    assert cuts.num == 1


@in_loop
async def test_many_sequences_with_alternatives_may_lag_for_as_long_as_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    cuts = Cuts()
    queue = DeltaQueue(256, cuts)
    for _ in range(90):
        for index in range(256):
            queue.put(delta(index, num_top=20))
    await asyncio.sleep(0)
    assert (cuts.num, queue.num_waiting) == (0, 256)


class Taker:
    """Takes deltas at once while `is_willing`; what it took, and what the queue's reader got."""

    def __init__(self) -> None:
        self.is_willing = True
        self.taken: list[SequenceDelta] = []
        self.read: list[SequenceDelta] = []

    def __call__(self, delta: SequenceDelta) -> bool:
        if self.is_willing:
            self.taken.append(delta)
        return self.is_willing

    async def read_all(self, queue: DeltaQueue) -> None:
        while (read := await queue.get()) is not None:
            self.read.append(read)


@in_loop
async def test_a_delta_that_is_waited_for_can_be_taken_at_once() -> None:
    queue, taker = DeltaQueue(1), Taker()
    queue.take = taker
    queue.put(delta())
    assert taker.taken == []
    reading = asyncio.create_task(taker.read_all(queue))
    await asyncio.sleep(0)
    assert len(taker.read) == 1
    for _ in range(3):
        queue.put(delta())
    assert (len(taker.taken), queue.num_waiting) == (3, 0)
    last = delta()
    last.finish_reason = "stop"
    queue.put(last)
    await asyncio.wait_for(reading, 5)
    assert (len(taker.taken), len(taker.read)) == (4, 1)


@in_loop
async def test_nothing_overtakes_a_delta_that_was_not_taken() -> None:
    queue, taker = DeltaQueue(2), Taker()
    queue.take = taker
    reading = asyncio.create_task(taker.read_all(queue))
    await asyncio.sleep(0)
    taker.is_willing = False
    queue.put(delta(0))
    taker.is_willing = True
    queue.put(delta(0, 2))
    queue.put(delta(1))
    assert taker.taken == []
    await asyncio.sleep(0)
    assert [(read.index, read.text) for read in taker.read] == [(0, "xxx"), (1, "x")]
    queue.put(delta(1))
    assert [taken.index for taken in taker.taken] == [1]
    reading.cancel()
    await asyncio.wait({reading})
    queue.put(delta(1))
    assert (len(taker.taken), queue.num_waiting) == (1, 1)


@in_loop
async def test_a_text_is_taken_only_while_it_is_waited_for_and_nothing_lies_before() -> None:
    queue, taker, texts = DeltaQueue(1), Taker(), list[tuple[int, str]]()
    assert not queue.put_text(0, "nobody takes texts")

    def take(index: int, text: str) -> bool:
        texts.append((index, text))
        return True

    queue.take_text = take
    assert not queue.put_text(0, "nobody waits")
    reading = asyncio.create_task(taker.read_all(queue))
    await asyncio.sleep(0)
    assert queue.put_text(0, "taken")
    queue.put(delta())
    assert not queue.put_text(0, "behind a delta")
    await asyncio.sleep(0)
    assert queue.put_text(0, "taken again")
    assert texts == [(0, "taken"), (0, "taken again")]
    reading.cancel()
    await asyncio.wait({reading})

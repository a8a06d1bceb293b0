"""The deltas of one request on their way to one reader, merged when the reader lags."""

import asyncio
from collections.abc import Callable

from vllm_obs.engine.errors import RequestFailedError
from vllm_obs.engine.frontend.open_sequence import TextSink
from vllm_obs.engine.frontend.outputs import SequenceDelta

MAX_WAITING_TOKENS = 65_536
"""A lagging reader's tokens, each with its alternatives, that are held for each of its sequences; about 10 MB."""
MAX_WAITING_TOKENS_IN_ALL = 524_288
"""The same of all its sequences, however many: an alternative takes about 165 bytes, so that this is 90 MB."""


Take = Callable[[SequenceDelta], bool]
"""Takes a delta at once, or does not (False); it must not wait."""


class DeltaQueue:
    """Holds at most one delta a sequence: a later one is merged into it, so that their number does not grow.

    Used from one event loop. However many deltas a step brings, the reader is woken once. With `cut` there is a
    bound on what is merged too: it is called once, from the loop, when more wait than `MAX_WAITING_TOKENS` for
    each sequence, or `MAX_WAITING_TOKENS_IN_ALL`.

    Its reader may set `take`, which is then offered each delta that it waits for and nothing lies before: what is
    taken costs no turn of the reader's task. What `take` does not want is as without it. `take_text` is the same
    for deltas of which nothing but the text matters, which need not be made then.
    """

    __slots__ = (
        "_arrived",
        "_cut",
        "_is_awaited",
        "_most",
        "_num_unfinished",
        "_waiting",
        "_weight_in_all",
        "_weights",
        "take",
        "take_text",
    )

    def __init__(self, num_sequences: int, cut: Callable[[], None] | None = None) -> None:
        self.take: Take | None = None
        self.take_text: TextSink | None = None
        self._num_unfinished = num_sequences
        self._waiting: dict[int, SequenceDelta] = {}
        self._weights: dict[int, int] = {}
        self._weight_in_all = 0
        self._most = min(MAX_WAITING_TOKENS * num_sequences, MAX_WAITING_TOKENS_IN_ALL)
        self._arrived = asyncio.Event()
        self._is_awaited = False
        self._cut = cut

    @property
    def num_waiting(self) -> int:
        """How many deltas wait for the reader, at most one a sequence."""
        return len(self._waiting)

    def put(self, delta: SequenceDelta) -> None:
        """Add a delta; never blocks. It raises what `take` raises."""
        if self.take is not None and self._is_awaited and not self._waiting and self.take(delta):
            self._given(delta)
            return
        earlier, weight = self._waiting.get(delta.index), _weight(delta)
        self._weight_in_all += weight
        if earlier is None:
            self._waiting[delta.index] = delta
            self._weights[delta.index] = weight
        else:
            self._weights[delta.index] += weight
            earlier.absorb(delta)
            if self._cut is not None and self._weight_in_all > self._most:
                # Not from here: whoever gives us this delta is in the middle of its sequence.
                asyncio.get_running_loop().call_soon(self._cut)
                self._cut = None
        self._arrived.set()

    def put_text(self, index: int, text: str) -> bool:
        """Have a text taken at once; False where it must come as a delta. It raises what `take_text` raises."""
        take_text = self.take_text
        return take_text is not None and self._is_awaited and not self._waiting and take_text(index, text)

    async def get(self) -> SequenceDelta | None:
        """The oldest waiting delta, as soon as there is one; None once every sequence's last one was given."""
        while not self._waiting:
            if self._num_unfinished == 0:
                return None
            self._arrived.clear()
            self._is_awaited = True
            try:
                await self._arrived.wait()
            finally:
                self._is_awaited = False
        delta = self._waiting.pop(next(iter(self._waiting)))
        self._weight_in_all -= self._weights.pop(delta.index)
        if delta.finish_reason is not None:
            self._num_unfinished -= 1
        return delta

    def _given(self, delta: SequenceDelta) -> None:
        """It was taken at once; after the last one the reader is told that there are no more."""
        if delta.finish_reason is not None:
            self._num_unfinished -= 1
            if self._num_unfinished == 0:
                self._arrived.set()


def _weight(delta: SequenceDelta) -> int:
    """Its tokens, each with its alternatives."""
    if delta.logprobs is None:
        return len(delta.token_ids)
    return sum(1 + len(entry.top) for entry in delta.logprobs)


class RequestStream:
    """An accepted request: iterate it for its deltas (sequences interleaved).

    `aclose` aborts what still runs; call it always (or use `async with`). `request_id` is the engine's own id;
    the sequences are `{request_id}-{index}`.
    """

    def __init__(
        self,
        request_id: str,
        queue: DeltaQueue,
        close: Callable[[], None],
        fail: Callable[[RequestFailedError], None],
    ) -> None:
        self.request_id = request_id
        self._queue = queue
        self._close = close
        self._fail = fail

    def __aiter__(self) -> "RequestStream":
        return self

    async def __anext__(self) -> SequenceDelta:
        delta = await self._queue.get()
        if delta is None:
            raise StopAsyncIteration
        return delta

    async def __aenter__(self) -> "RequestStream":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    def offer(self, take: Take, take_text: TextSink) -> None:
        """From now on offer each delta that is waited for to `take` first, and each text to `take_text` before.

        What they take is not iterated.
        """
        self._queue.take, self._queue.take_text = take, take_text

    def fail(self, failure: RequestFailedError) -> None:
        """End the sequences that still run with an error; their last deltas carry it."""
        self._fail(failure)

    async def aclose(self) -> None:
        """Abort the sequences that still run; harmless when none does, and when called again."""
        self._close()

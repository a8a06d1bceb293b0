"""The deltas of one request on their way to one reader, merged when the reader lags."""

import asyncio
from collections.abc import Callable

from vllm_obs.engine.frontend.outputs import SequenceDelta


class DeltaQueue:
    """Holds at most one delta a sequence: a later one is merged into it, so memory does not grow with the lag.

    Used from one event loop. However many deltas a step brings, the reader is woken once.
    """

    def __init__(self, num_sequences: int) -> None:
        self._num_unfinished = num_sequences
        self._waiting: dict[int, SequenceDelta] = {}
        self._arrived = asyncio.Event()

    @property
    def num_waiting(self) -> int:
        """How many deltas wait for the reader, at most one a sequence."""
        return len(self._waiting)

    def put(self, delta: SequenceDelta) -> None:
        """Add a delta; never blocks."""
        earlier = self._waiting.get(delta.index)
        if earlier is None:
            self._waiting[delta.index] = delta
        else:
            earlier.absorb(delta)
        self._arrived.set()

    async def get(self) -> SequenceDelta | None:
        """The oldest waiting delta, as soon as there is one; None once every sequence's last one was given."""
        while not self._waiting:
            if self._num_unfinished == 0:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        delta = self._waiting.pop(next(iter(self._waiting)))
        if delta.finish_reason is not None:
            self._num_unfinished -= 1
        return delta


class RequestStream:
    """An accepted request: iterate it for its deltas (sequences interleaved).

    `aclose` aborts what still runs; call it always (or use `async with`). `request_id` is the engine's own id;
    the sequences are `{request_id}-{index}`.
    """

    def __init__(self, request_id: str, queue: DeltaQueue, close: Callable[[], None]) -> None:
        self.request_id = request_id
        self._queue = queue
        self._close = close

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

    async def aclose(self) -> None:
        """Abort the sequences that still run; harmless when none does, and when called again."""
        self._close()

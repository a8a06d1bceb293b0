"""PushedStream: a streamed reply whose events go to the connection as the engine's outputs come in."""

import asyncio
from collections.abc import AsyncGenerator, Callable

from starlette.types import Scope, Send

from vllm_obs.engine.frontend.outputs import SequenceDelta
from vllm_obs.server.body_writer import BodyWriter
from vllm_obs.server.generation import Generation
from vllm_obs.server.sse import EventStream

Events = Callable[[int, SequenceDelta], bytes]
"""The events of a numbered delta, empty where it brings none."""


class PushedStream(EventStream):
    """As an EventStream, but no task is woken for an event that the connection can take at once.

    `frames` makes all events of the reply, those of deltas by `events`. Its task still writes the first events,
    the last ones, failures, and all while the client reads too slowly: then deltas wait and are merged. Where the
    request's state has no `body_writer` it writes everything.
    """

    def __init__(self, frames: AsyncGenerator[bytes, None], generation: Generation, events: Events) -> None:
        super().__init__(frames, generation)
        self._generation = generation
        self._write_events = events
        self._clock = asyncio.get_running_loop().time

    async def _send_all(self, scope: Scope, send: Send) -> None:
        writer: BodyWriter | None = scope["state"].get("body_writer")
        if writer is not None:
            self._writer = writer
            self._generation.offer(self._take)
        await super()._send_all(scope, send)

    def _take(self, delta: SequenceDelta) -> bool:
        """Write the events of a delta, whose turn it is; False where that would have to wait, or it failed."""
        if delta.finish_reason == "error" or self._lock.locked() or not self._writer.is_open:
            return False
        if events := self._write_events(delta.index, delta):
            self._writer.write(events)
            self._sent_at = self._clock()
        return True

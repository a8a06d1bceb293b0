"""PushedStream: a streamed reply whose events go to the connection as the engine's outputs come in."""

from collections.abc import AsyncGenerator, Callable, Mapping
from types import MappingProxyType

from starlette.types import Scope, Send

from vllm_obs.engine.frontend.outputs import SequenceDelta
from vllm_obs.server.body_writer import BodyWriter
from vllm_obs.server.generation import Generation
from vllm_obs.server.sse import EventStream
from vllm_obs.server.text_frame import TextFrame

Events = Callable[[int, SequenceDelta], bytes]
"""The events of a numbered delta, empty where it brings none."""

NO_FRAMES: Mapping[int, TextFrame] = MappingProxyType({})


class PushedStream(EventStream):
    """As an EventStream, but no task is woken for an event that the connection can take at once.

    `frames` makes all events of the reply, those of deltas by `events`. In `text_frames` that leaves, by choice,
    the event in which only a text is new, once there is one: such events are made without a delta. The task still
    writes the first events, the last ones, failures, and all while the client reads too slowly: then deltas wait
    and are merged. Where the request's state has no `body_writer` it writes everything.
    """

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        generation: Generation,
        events: Events,
        text_frames: Mapping[int, TextFrame] = NO_FRAMES,
    ) -> None:
        super().__init__(frames, generation)
        self._generation = generation
        self._write_events = events
        self._text_frames = text_frames

    async def _send_all(self, scope: Scope, send: Send) -> None:
        writer: BodyWriter | None = scope["state"].get("body_writer")
        if writer is not None:
            self._writer = writer
            self._generation.offer(self._take, self._take_text)
        await super()._send_all(scope, send)

    def _take(self, delta: SequenceDelta) -> bool:
        """Write the events of a delta, whose turn it is; False where that would have to wait, or it failed."""
        if delta.finish_reason == "error" or self._lock.locked() or not self._writer.is_open:
            return False
        if events := self._write_events(delta.index, delta):
            self._writer.write(events)
            self._has_sent = True
        return True

    def _take_text(self, index: int, text: str) -> bool:
        """`_take` for a delta of which nothing but the text matters."""
        frame = self._text_frames.get(index)
        if frame is None or self._lock.locked() or not self._writer.is_open:
            return False
        if text:
            self._writer.write(frame(text))
            self._has_sent = True
        return True

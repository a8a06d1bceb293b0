"""A streamed reply from its first event to `[DONE]`, whichever API's events it has."""

from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass

from vllm_obs.engine.frontend.outputs import SequenceDelta
from vllm_obs.server.generation import Generation
from vllm_obs.server.sse import DONE
from vllm_obs.server.text_frame import TextFrame


@dataclass(frozen=True)
class StreamedReply:
    """What `events` writes for each numbered delta (perhaps nothing), then `last_event()` and `[DONE]`.

    `text_frames` are filled by `events`: see PushedStream.
    """

    generation: Generation
    events: Callable[[int, SequenceDelta], bytes]
    last_event: Callable[[], bytes]
    text_frames: Mapping[int, TextFrame]

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """All of it; closing it aborts what still runs."""
        try:
            async for number, delta in self.generation.deltas():
                if written := self.events(number, delta):
                    yield written
            yield self.last_event() + DONE
        finally:
            await self.generation.aclose()

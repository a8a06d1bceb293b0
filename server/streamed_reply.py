"""A streamed reply from its first event to `[DONE]`, whichever API's events it has."""

from collections.abc import AsyncGenerator, Callable

from vllm_obs.engine.frontend.outputs import SequenceDelta
from vllm_obs.server.generation import Generation
from vllm_obs.server.sse import DONE


async def streamed_reply(
    generation: Generation, events: Callable[[int, SequenceDelta], bytes], last_event: Callable[[], bytes]
) -> AsyncGenerator[bytes, None]:
    """What `events` writes for each numbered delta (nothing where it is empty), then `last_event()` and `[DONE]`.

    Closing it aborts what still runs.
    """
    try:
        async for number, delta in generation.deltas():
            if written := events(number, delta):
                yield written
        yield last_event() + DONE
    finally:
        await generation.aclose()

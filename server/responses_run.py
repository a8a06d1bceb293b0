"""One response in the making: whole or streamed to the client that waits for it, or in the background."""

import asyncio
from collections.abc import AsyncGenerator, Callable

import orjson
from starlette.types import Receive

from vllm_obs.engine.frontend.outputs import SequenceDelta
from vllm_obs.server.boundary import reply_for
from vllm_obs.server.disconnect import until_disconnect
from vllm_obs.server.errors import ApiError
from vllm_obs.server.generation import Generation
from vllm_obs.server.pushed_stream import PushedStream
from vllm_obs.server.reply_metrics import ReplyMetrics
from vllm_obs.server.responses_builder import ResponseBuilder, ResponseShape
from vllm_obs.server.responses_events import EventFrames, EventLog, frame, no_events
from vllm_obs.server.responses_resource import Resource
from vllm_obs.server.sse import EventStream
from vllm_obs.server.state import ApiServer

Keep = Callable[[Resource], None]
"""Takes a response that has ended."""

CANCEL_SECONDS = 5.0


async def whole_response(
    receive: Receive, generation: Generation, shape: ResponseShape, metrics: ReplyMetrics
) -> Resource:
    """The response once it is whole; ClientGoneError when nobody waits for it any more, ApiError when it fails."""
    builder = ResponseBuilder(shape, no_events)
    try:
        (delta,) = await until_disconnect(receive, generation.collect())
    finally:
        await generation.aclose()
    builder.add(delta)
    metrics.add(delta)
    return builder.finish()


class ResponseStream(PushedStream):
    """The typed events of one response. A failure is told by response.failed, then as everywhere by an error."""

    def __init__(self, generation: Generation, shape: ResponseShape, keep: Keep) -> None:
        self._events = EventFrames()
        self._builder = ResponseBuilder(shape, self._events.emit)
        self._keep = keep
        super().__init__(self._frames_of(generation), generation, self._events_of)

    def _events_of(self, number: int, delta: SequenceDelta) -> bytes:
        self._builder.add(delta)
        return self._events.take()

    async def _frames_of(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        builder = self._builder
        builder.begin()
        builder.start()
        yield self._events.take()
        try:
            async for number, delta in generation.deltas():
                if frames := self._events_of(number, delta):
                    yield frames
            self._keep(builder.finish())
            yield self._events.take()
        except Exception as error:
            known = reply_for(error, generation.request_id)
            self._keep(builder.fail(known))
            yield self._events.take()
            raise known from error
        finally:
            await generation.aclose()

    def error_event(self, error: ApiError) -> bytes:
        """The error as a typed event that is also what every other stream would say."""
        return error_frame(error, self._events.num_events)


class LoggedStream(EventStream):
    """The typed events of a response that is made in the background, from any of them on."""

    def __init__(self, log: EventLog, after: int, request_id: str) -> None:
        self._log = log
        super().__init__(log.read(after), _Nothing(request_id))

    def error_event(self, error: ApiError) -> bytes:
        """As `ResponseStream` has it."""
        return error_frame(error, self._log.num_events)


def error_frame(error: ApiError, number: int) -> bytes:
    """The last event of a stream that failed."""
    return frame("error", error.content(), number)


class _Nothing:
    """What there is to close of a stream whose response goes on without it."""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id

    async def aclose(self) -> None:
        """Leave it alone."""


class BackgroundRun:
    """A response that nobody waits for. It counts as an open request, so that a drain waits for it."""

    def __init__(self, api: ApiServer, generation: Generation, shape: ResponseShape, keep: Keep) -> None:
        self.log = EventLog() if shape.head.request.stream else None
        self._api = api
        self._generation = generation
        self._keep = keep
        self._builder = ResponseBuilder(shape, no_events if self.log is None else self.log.emit)
        self._builder.begin()
        self.queued = orjson.dumps(self._builder.resource())
        api.num_open += 1
        self._task = asyncio.create_task(self._run(), name="background response")

    def resource(self) -> Resource:
        """The response until now."""
        return self._builder.resource()

    async def cancel(self) -> None:
        """Abort it, unless it is over; return once it is stored as cancelled."""
        await asyncio.sleep(0)  # cancelled before it has begun it would end without a word
        self._task.cancel()
        await asyncio.wait({self._task}, timeout=CANCEL_SECONDS)

    async def _run(self) -> None:
        builder = self._builder
        failure: ApiError | None = None
        try:
            async for _, delta in self._generation.deltas():
                if builder.status == "queued":
                    builder.start()
                builder.add(delta)
            resource = builder.finish()
        except asyncio.CancelledError:
            resource = builder.cancel()
        except Exception as error:
            failure = reply_for(error, self._generation.request_id)
            resource = builder.fail(failure)
        finally:
            await self._generation.aclose()
            self._api.num_open -= 1
        if self.log is not None:
            self.log.close(failure)
        self._keep(resource)

"""The dashboard's own way to the Observer, `/observer/…`: a browser on another machine needs one port only."""

from collections.abc import AsyncIterator, Sequence
from urllib.parse import quote

import httpx
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from vllm_obs.dashboard.source import Source
from vllm_obs.telemetry.inspect_client import InspectorError

PREFIX = "/observer"
SERVER = "server"
"""The parameter that says which of several servers is asked; it is not passed on."""
READ_SECONDS = 30.0
CONNECT_SECONDS = 3.0
STREAM_READ_SECONDS = 15.0
"""A stream says that it lives once a second."""
MAX_STREAMS = 16
_PASSED_ON = ("content-type", "content-disposition", "content-length", "cache-control")
_AS_IT_SAYS = {"x-content-type-options": "nosniff"}
"""A file of a profile is never taken for a page of this origin."""


class Proxy:
    """Passes GETs of the inspector API on; whatever changes something goes through a page, not through here."""

    def __init__(self, source: Source, others: Sequence[Source] = ()) -> None:
        self._sources = (source, *others)
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=MAX_STREAMS + 16),
            trust_env=False,
        )
        self._num_streams = 0

    @property
    def routes(self) -> list[Route]:
        """What the application mounts."""
        return [Route(f"{PREFIX}/{{path:path}}", self.answer, methods=["GET"])]

    async def close(self) -> None:
        """Let go of all connections."""
        await self._client.aclose()

    async def answer(self, request: Request) -> Response:
        """The Observer's answer, streamed; 502 where there is no Observer, 503 where too many listen."""
        path = request.path_params["path"]
        if not path.startswith("inspect/"):
            return _refusal("only /observer/inspect/… is passed on", 404)
        if not {".", ".."}.isdisjoint(path.split("/")):
            return _refusal("a path that goes up again is not passed on", 404)
        is_stream = path.startswith("inspect/streams/") or path == "inspect/events"
        if is_stream and self._num_streams >= MAX_STREAMS:
            return _refusal(f"{self._num_streams} pages listen already, which is the limit", 503)
        # Counted before anything is awaited, so that those who come at once see one another.
        place = _Place(self, is_stream)
        try:
            reply = await self._ask(path, request, is_stream)
        except (InspectorError, httpx.HTTPError, httpx.InvalidURL) as error:
            place.leave()
            return _refusal(f"the Observer does not answer: {error}", 502)
        except BaseException:
            place.leave()
            raise
        return _Passed(reply, place)

    async def _ask(self, path: str, request: Request, is_stream: bool) -> httpx.Response:
        inspector = await run_in_threadpool(self._source_of(request).inspector)
        asked = self._client.build_request(
            "GET",
            f"{inspector.url}/{quote(path)}",
            params=[(name, value) for name, value in request.query_params.multi_items() if name != SERVER],
            # What comes is passed on byte by byte, without what would say how it is packed.
            headers={"accept-encoding": "identity"},
            timeout=httpx.Timeout(STREAM_READ_SECONDS if is_stream else READ_SECONDS, connect=CONNECT_SECONDS),
        )
        return await self._client.send(asked, stream=True)

    def _source_of(self, request: Request) -> Source:
        """Of several servers the one whose number is asked for, else the first."""
        number = request.query_params.get(SERVER, "")
        is_known = number.isascii() and number.isdecimal() and len(number) < 4 and int(number) < len(self._sources)
        return self._sources[int(number) if is_known else 0]

    def count(self, num: int) -> None:
        """So many streams more, or less."""
        self._num_streams += num


class _Place:
    """A stream's place among those that are allowed; others need none."""

    def __init__(self, proxy: Proxy, is_stream: bool) -> None:
        self._proxy = proxy
        self._num = int(is_stream)
        proxy.count(self._num)

    def leave(self) -> None:
        """Give it back; idempotent."""
        self._proxy.count(-self._num)
        self._num = 0


class _Passed(StreamingResponse):
    """The Observer's reply as it comes. However it ends, also before its first byte, its place is given back."""

    def __init__(self, reply: httpx.Response, place: _Place) -> None:
        headers = {name: reply.headers[name] for name in _PASSED_ON if name in reply.headers}
        super().__init__(_parts(reply), reply.status_code, headers | _AS_IT_SAYS)
        self._reply = reply
        self._place = place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._place.leave()
            await self._reply.aclose()


async def _parts(reply: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for part in reply.aiter_raw():
            yield part
    except httpx.HTTPError:
        # The stream ends here; the page sees that and comes again.
        return


def _refusal(message: str, status: int) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "code": status}}, status, _AS_IT_SAYS)

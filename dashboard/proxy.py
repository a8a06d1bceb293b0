"""The dashboard's own way to the Observer, `/observer/…`: a browser on another machine needs one port only."""

from collections.abc import AsyncIterator

import httpx
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from vllm_obs.dashboard.source import Source
from vllm_obs.telemetry.inspect_client import InspectorError

PREFIX = "/observer"
READ_SECONDS = 30.0
CONNECT_SECONDS = 3.0
STREAM_READ_SECONDS = 15.0
"""A stream says that it lives once a second."""
MAX_STREAMS = 16
_PASSED_ON = ("content-type", "content-disposition", "content-length", "cache-control")


class Proxy:
    """Passes GETs of the inspector API on; whatever changes something goes through a page, not through here."""

    def __init__(self, source: Source) -> None:
        self._source = source
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
        is_stream = path.startswith("inspect/streams/") or path == "inspect/events"
        if is_stream and self._num_streams >= MAX_STREAMS:
            return _refusal(f"{self._num_streams} pages listen already, which is the limit", 503)
        try:
            inspector = await run_in_threadpool(self._source.inspector)
            timeout = httpx.Timeout(STREAM_READ_SECONDS if is_stream else READ_SECONDS, connect=CONNECT_SECONDS)
            asked = self._client.build_request(
                "GET", f"{inspector.url}/{path}", params=request.query_params, timeout=timeout
            )
            reply = await self._client.send(asked, stream=True)
        except (InspectorError, httpx.HTTPError, httpx.InvalidURL) as error:
            return _refusal(f"the Observer does not answer: {error}", 502)
        headers = {name: reply.headers[name] for name in _PASSED_ON if name in reply.headers}
        return StreamingResponse(self._body(reply, is_stream), reply.status_code, headers)

    async def _body(self, reply: httpx.Response, is_stream: bool) -> AsyncIterator[bytes]:
        self._num_streams += is_stream
        try:
            async for part in reply.aiter_raw():
                yield part
        except httpx.HTTPError:
            # The stream ends here; the page sees that and comes again.
            return
        finally:
            self._num_streams -= is_stream
            await reply.aclose()


def _refusal(message: str, status: int) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "code": status}}, status)

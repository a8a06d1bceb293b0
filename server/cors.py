"""Cross-origin requests: preflights answered at the edge, allowed origins named on every reply."""

import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vllm_obs.server.boundary import send_error
from vllm_obs.server.errors import ApiError

Headers = list[tuple[bytes, bytes]]

METHODS = b"GET, POST, HEAD, OPTIONS, PUT, PATCH, DELETE"
MAX_ECHO_BYTES = 1024
NOT_A_HEADER_LIST = re.compile(rb"[^A-Za-z0-9_\-, ]")


class CrossOrigin:
    """Adds the Access-Control headers. `allowed_origins` ("*",) is every origin."""

    def __init__(self, app: ASGIApp, allowed_origins: tuple[str, ...], allow_credentials: bool) -> None:
        self.app = app
        self._origins = {origin.encode() for origin in allowed_origins}
        self._allow_credentials = allow_credentials

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        origin = headers.get(b"origin")
        if origin is None:
            await self.app(scope, receive, send)
        elif scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
            await self._answer_preflight(scope, receive, send)
        else:
            await self.app(scope, receive, _with_headers(send, self._origin_headers(origin)))

    async def _answer_preflight(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        allowed = self._origin_headers(headers[b"origin"])
        if not allowed:
            refusal = ApiError("this origin is not allowed", "forbidden")
            scope["state"]["reason"] = refusal.reason
            await send_error(refusal, receive, send)
            return
        asked = headers.get(b"access-control-request-headers", b"")[:MAX_ECHO_BYTES]
        reply: Headers = [
            *allowed,
            (b"access-control-allow-methods", METHODS),
            (b"access-control-allow-headers", NOT_A_HEADER_LIST.sub(b"", asked)),
            (b"access-control-max-age", b"600"),
            (b"content-length", b"0"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": reply})
        await send({"type": "http.response.body", "body": b""})

    def _origin_headers(self, origin: bytes) -> Headers:
        if b"*" not in self._origins and origin not in self._origins:
            return []
        headers = [(b"access-control-expose-headers", b"x-request-id")]
        if b"*" in self._origins and not self._allow_credentials:
            return [*headers, (b"access-control-allow-origin", b"*")]
        headers += [(b"access-control-allow-origin", origin), (b"vary", b"origin")]
        return [*headers, (b"access-control-allow-credentials", b"true")] if self._allow_credentials else headers


def _with_headers(send: Send, headers: Headers) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *headers]
        await send(message)

    return send_with_headers

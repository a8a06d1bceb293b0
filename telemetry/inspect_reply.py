"""Replies of the inspector API: small ASGI applications, since a framework takes longer to load than all else."""

from collections.abc import Mapping
from typing import Any

import orjson
from starlette.types import Receive, Scope, Send

_NOT_KEPT = {"cache-control": "no-store"}


class Reply:
    """One whole reply. `media_type` is what its Content-Type says, "" for a reply that has none."""

    def __init__(
        self, body: bytes, media_type: str, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        self.body = body
        self.status_code = status
        named = {"content-length": str(len(body)), "content-type": media_type, **(headers or {})}
        self.raw_headers = [(name.encode(), value.encode("latin-1")) for name, value in named.items() if value]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body})


class Answer(Reply):
    """A JSON reply, written by orjson; never kept by a cache."""

    def __init__(self, content: Any, status_code: int = 200, headers: Mapping[str, str] | None = None) -> None:
        body = orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY)
        super().__init__(body, "application/json", status_code, {**_NOT_KEPT, **(headers or {})})


_ERROR_TYPES = {
    404: "not_found",
    408: "timeout",
    409: "conflict",
    413: "too_large",
    415: "unsupported_media_type",
    500: "internal_error",
    503: "overloaded",
    504: "timeout",
}
"""HTTP status → the word in the reply; of what is not here the request is at fault."""


class InspectError(Exception):
    """What was asked for cannot be answered; `status` is HTTP's, `headers` are further ones of the reply."""

    def __init__(self, message: str, status: int, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers

    def answer(self) -> Answer:
        """The reply, in the error shape of the API server."""
        kind = _ERROR_TYPES.get(self.status, "invalid_value")
        error = {"message": str(self), "type": kind, "code": self.status}
        return Answer({"error": error}, self.status, self.headers)

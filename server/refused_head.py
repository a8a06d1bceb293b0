"""RefusedHead: a request that its connection answers itself, since its head cannot be passed on."""

from collections.abc import Iterable
from typing import NamedTuple

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from vllm_obs.server.errors import ApiError


class RefusedHead(NamedTuple):
    """What it is answered. `received_at` is when its first byte was read (monotonic ns)."""

    http_id: str
    error: ApiError
    received_at: int

    @property
    def num_response_bytes(self) -> int:
        """Of the reply's body."""
        return len(self.error.body())

    @property
    def line(self) -> str:
        """What the access log tells of it: there is no path and no method that one could rely on."""
        return f"refused: {self.error.status} {self.error.reason} ({self.http_id})"

    def reply(self, default_headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """The whole reply, with the headers that every one has."""
        body = self.error.body()
        headers = [
            *default_headers,
            *self.error.headers(),
            (b"content-length", str(len(body)).encode()),
            (b"x-request-id", self.http_id.encode()),
        ]
        lines = [b"%b: %b\r\n" % header for header in headers]
        return b"".join([STATUS_LINE[self.error.status], *lines, b"\r\n", body])

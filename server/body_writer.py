"""BodyWriter: parts of a reply's body straight to their connection, where nothing has to be waited for."""

import time

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class BodyWriter:
    """Of the reply to one request. It counts what it writes: no layer of the application sees that.

    `num_bytes` is without the marks between chunks, `begun_at` the moment of the first (monotonic ns), 0 before.
    """

    __slots__ = ("_cycle", "begun_at", "num_bytes")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self.num_bytes = 0
        self.begun_at = 0
        self._cycle = cycle

    @property
    def is_open(self) -> bool:
        """Whether a part may be written now: the reply has begun, is not over, and its client keeps up."""
        cycle = self._cycle
        is_over = cycle.response_complete or cycle.disconnected or cycle.flow.write_paused
        return bool(cycle.chunked_encoding) and not is_over

    def write(self, part: bytes) -> None:
        """Write a part, which must not be empty, while it `is_open`."""
        self.begun_at = self.begun_at or time.monotonic_ns()
        self.num_bytes += len(part)
        self._cycle.transport.write(b"%x\r\n%b\r\n" % (len(part), part))

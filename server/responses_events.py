"""The typed events of a response: numbered from 0 without gaps, sent at once or kept for who comes later."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import orjson

from vllm_obs.server.errors import ApiError

Emit = Callable[[str, dict[str, Any]], None]
"""Takes an event's type and its fields."""

MAX_LOG_BYTES = 4 * 1024 * 1024


def no_events(kind: str, fields: dict[str, Any]) -> None:
    """For a reply that is sent whole."""


def frame(kind: str, fields: dict[str, Any], number: int) -> bytes:
    """One event as it is sent."""
    data = orjson.dumps({**fields, "sequence_number": number, "type": kind})
    return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"


class EventFrames:
    """The events that are not sent yet."""

    def __init__(self) -> None:
        self.num_events = 0
        self._waiting: list[bytes] = []

    def emit(self, kind: str, fields: dict[str, Any]) -> None:
        """Add an event."""
        self._waiting.append(frame(kind, fields, self.num_events))
        self.num_events += 1

    def take(self) -> bytes:
        """All that wait, in their order; none of them waits any more."""
        frames = b"".join(self._waiting)
        self._waiting.clear()
        return frames


class EventLog:
    """All events of a response that is made in the background, for any number of readers at any time.

    A log that grows over `max_bytes` is given up, so that its readers get an error: the response itself goes on.
    """

    def __init__(self, max_bytes: int = MAX_LOG_BYTES) -> None:
        self.num_events = 0
        self.num_bytes = 0
        self._max_bytes = max_bytes
        self._frames: list[bytes] = []
        self._grown = asyncio.Event()
        self._is_over = False
        self._failure: ApiError | None = None

    def emit(self, kind: str, fields: dict[str, Any]) -> None:
        """Add an event."""
        if self._is_over:
            return
        event = frame(kind, fields, self.num_events)
        if self.num_bytes + len(event) > self._max_bytes:
            self._frames.clear()
            self.num_bytes = 0
            limit = (
                f"the events of this response are over the limit of {self._max_bytes} bytes: ask without stream"
            )
            self.close(ApiError(limit, "too_large"))
            return
        self._frames.append(event)
        self.num_events += 1
        self.num_bytes += len(event)
        self._wake()

    def close(self, failure: ApiError | None = None) -> None:
        """No event comes after this; readers end, with `failure` where there is one."""
        if not self._is_over:
            self._is_over, self._failure = True, failure
            self._wake()

    async def read(self, after: int = -1) -> AsyncGenerator[bytes, None]:
        """The events after the one with that number, as they come. ApiError where the log ends with one."""
        position = after + 1
        while True:
            grown = self._grown
            if frames := self._frames[position:]:
                position += len(frames)
                yield b"".join(frames)
            elif self._is_over:
                break
            else:
                await grown.wait()
        if self._failure is not None:
            raise self._failure

    def _wake(self) -> None:
        self._grown.set()
        self._grown = asyncio.Event()

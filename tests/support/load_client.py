"""Many HTTP exchanges at a time from one event loop, each with the moments and the truth that its client saw."""

import asyncio
import contextlib
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
DONE = b"[DONE]"
LAG_SECONDS = 0.005
"""How often the loop's own lag is looked at."""


@dataclass
class Asked:
    """One request: a body (bytes go out as they are), and when its client leaves, if it does.

    `leave_events` many events, or `leave_seconds`, after which it closes its connection.
    """

    label: str
    body: Any
    path: str = COMPLETIONS
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)
    leave_events: int = 0
    leave_seconds: float = 0.0


@dataclass
class Seen:
    """What its client saw. `status` is 0 where it left before the answer; moments are monotonic ns."""

    asked: Asked
    sent_at: int = 0
    ended_at: int = 0
    status: int = 0
    reply: Any = None
    events: list[Any] = field(default_factory=list)
    has_left: bool = False
    is_done: bool = False
    """Whether a stream told its end."""

    @property
    def elapsed_ns(self) -> int:
        return self.ended_at - self.sent_at

    @property
    def finish_reasons(self) -> list[str]:
        """Of the choices in order; of a stream those that came."""
        replies = self.events or [self.reply]
        ends = {
            choice["index"]: choice["finish_reason"]
            for reply in replies
            for choice in reply.get("choices", ())
            if choice["finish_reason"]
        }
        return [ends[index] for index in sorted(ends)]

    @property
    def usage(self) -> dict[str, int]:
        """The tokens as the server told them to its client."""
        return dict(self.events[-1]["usage"] if self.events else self.reply["usage"])


class LoadClient:
    """Sends to one port of this host, at most `concurrency` requests at a time, each on its own connection."""

    def __init__(self, port: int, concurrency: int) -> None:
        self.max_lag_ns = 0
        """How late this client's own loop ran at worst: so late it may have noted a moment."""
        self._port = port
        self._concurrency = concurrency

    def run(self, requests: Iterable[Asked]) -> list[Seen]:
        """Send them all and give what was seen, in their order."""
        return asyncio.run(self._run(requests))

    async def _run(self, requests: Iterable[Asked]) -> list[Seen]:
        watch = asyncio.create_task(self._watch())
        free = asyncio.Semaphore(self._concurrency)
        try:
            return list(await asyncio.gather(*(self._exchange(asked, free) for asked in requests)))
        finally:
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watch

    async def _watch(self) -> None:
        while True:
            due_at = time.monotonic_ns() + round(LAG_SECONDS * 1e9)
            await asyncio.sleep(LAG_SECONDS)
            self.max_lag_ns = max(self.max_lag_ns, time.monotonic_ns() - due_at)

    async def _exchange(self, asked: Asked, free: asyncio.Semaphore) -> Seen:
        async with free:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            seen = Seen(asked, time.monotonic_ns())
            try:
                writer.write(_request_bytes(asked))
                async with asyncio.timeout(asked.leave_seconds or None):
                    await _read(reader, seen)
            except TimeoutError:
                seen.has_left = True
            finally:
                seen.ended_at = seen.ended_at or time.monotonic_ns()
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
            return seen


def _request_bytes(asked: Asked) -> bytes:
    body = asked.body if isinstance(asked.body, bytes) else json.dumps(asked.body).encode()
    headers = {
        "Host": "localhost",
        "Connection": "close",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "X-Request-Id": asked.label,
        **asked.headers,
    }
    lines = [f"{asked.method} {asked.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def _read(reader: asyncio.StreamReader, seen: Seen) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
    seen.status = int(head[0].split()[1])
    headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
    if "content-length" in headers:
        body = await reader.readexactly(int(headers["content-length"]))
        seen.ended_at = time.monotonic_ns()
        seen.reply = json.loads(body)
        return
    await _read_events(reader, seen)


async def _read_events(reader: asyncio.StreamReader, seen: Seen) -> None:
    """Read a stream to the end of its last chunk, or leave it; the lines between chunks are passed over."""
    async for line in reader:
        if line == b"0\r\n":
            break
        if line.startswith(b"data: " + DONE):
            seen.is_done = True
        elif line.startswith(b"data: "):
            seen.events.append(json.loads(line[6:]))
            if len(seen.events) == seen.asked.leave_events:
                seen.has_left = True
                return
    seen.ended_at = time.monotonic_ns()

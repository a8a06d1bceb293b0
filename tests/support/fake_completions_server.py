"""A tiny OpenAI completions server for tests: it streams SSE over chunked HTTP/1.1 as a script tells it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class FakeServer:
    """Waits `delay_seconds` before each token; fails with a status or after some tokens; keeps what it saw."""

    delay_seconds: float = 0.0
    fail_with: int = 0
    cut_after: int | None = None
    closes_idle: bool = False
    port: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    num_connections: int = 0
    running: int = 0
    peak: int = 0

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator["FakeServer"]:
        """Listen on a free port of the loopback interface."""
        tasks: set[asyncio.Task[None]] = set()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
            tasks.add(task)

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        try:
            while await self._answer_one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        if head.startswith("GET /v1/models "):
            self._write_json(writer, 200, {"object": "list", "data": [{"id": "fake/model"}]})
            return True
        length = int(head.lower().partition("content-length:")[2].split()[0])
        body = json.loads(await reader.readexactly(length))
        self.bodies.append(body)
        if self.fail_with:
            self._write_json(writer, self.fail_with, {"error": {"message": "no such luck"}})
            return True
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            return await self._stream(writer, body)
        finally:
            self.running -= 1

    async def _stream(self, writer: asyncio.StreamWriter, body: dict[str, Any]) -> bool:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for index in range(body["max_tokens"]):
            if index == self.cut_after:
                return False
            await asyncio.sleep(self.delay_seconds)
            self._write_event(writer, json.dumps({"choices": [{"index": 0, "text": f" t{index}"}]}))
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": body["max_tokens"]}
        self._write_event(writer, json.dumps({"choices": [], "usage": usage}))
        self._write_event(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return not self.closes_idle

    @staticmethod
    def _write_event(writer: asyncio.StreamWriter, text: str) -> None:
        event = f"data: {text}\n\n".encode()
        # In two chunks, so that events and chunks do not coincide.
        for part in (event[:7], event[7:]):
            writer.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")

    @staticmethod
    def _write_json(writer: asyncio.StreamWriter, status: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        writer.write(f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)

"""Those who connect to the inspector and say nothing keep nobody out, and are not kept."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from vllm_obs.telemetry import inspect_protocol, inspect_server
from vllm_obs.telemetry.inspect_protocol import InspectProtocol
from vllm_obs.telemetry.inspect_server import InspectServer, connection_limit

SECONDS = 10.0
ASK = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
HALVES = (b"", b"GET / HT", b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nhalf", b"\r\n")

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers once the request is whole."""
    await Request(scope, receive).body()
    await PlainTextResponse("hello")(scope, receive, send)


class Held:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.num_asked = 0
        self.goes_on = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.num_asked += 1
        await self.goes_on.wait()
        response: Response = PlainTextResponse("hello")
        await response(scope, receive, send)


@contextlib.asynccontextmanager
async def serving(app: ASGIApp) -> AsyncIterator[Callable[[bytes], Coroutine[Any, Any, Connection]]]:
    """Gives what opens connections and says something on them."""
    server = InspectServer(app, "127.0.0.1", 0, None)
    await server.start()
    writers: list[asyncio.StreamWriter] = []

    async def connect(said: bytes) -> Connection:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writers.append(writer)
        writer.write(said)
        return reader, writer

    try:
        yield connect
    finally:
        for writer in writers:
            writer.close()
        await server.stop()


async def rest_of(reader: asyncio.StreamReader) -> bytes:
    """What comes until the connection is closed."""
    async with asyncio.timeout(SECONDS):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


@pytest.mark.parametrize("said", HALVES)
def test_a_connection_without_a_whole_request_is_closed(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect_protocol, "REQUEST_SECONDS", 0.1)

    async def scenario() -> bytes:
        async with serving(echo) as connect:
            reader, _ = await connect(said)
            return await rest_of(reader)

    assert asyncio.run(scenario()) == b""


@pytest.mark.parametrize("said", HALVES)
def test_so_is_one_that_was_answered_once(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect_protocol, "KEEP_ALIVE_SECONDS", 0.1)
    monkeypatch.setattr(inspect_server, "KEEP_ALIVE_SECONDS", 1000.0)

    async def scenario() -> bytes:
        async with serving(echo) as connect:
            reader, writer = await connect(ASK)
            await reader.readuntil(b"hello")
            writer.write(said)
            return await rest_of(reader)

    assert asyncio.run(scenario()) == b""


def test_an_answer_may_take_longer_than_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect_protocol, "REQUEST_SECONDS", 0.5)

    async def scenario() -> list[bytes]:
        held = Held()
        async with serving(held) as connect:
            reader, writer = await connect(ASK)
            await asyncio.sleep(1.0)
            held.goes_on.set()
            first = await reader.readuntil(b"hello")
            writer.write(ASK)
            return [first, await reader.readuntil(b"hello")]

    assert [answer.split(b"\r\n")[0] for answer in asyncio.run(scenario())] == [b"HTTP/1.1 200 OK"] * 2


def test_one_that_asks_is_answered_whoever_else_is_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect_server, "MAX_CONNECTIONS", 4)

    async def scenario() -> tuple[list[bytes], int]:
        async with serving(echo) as connect:
            silent = [await connect(b"GET") for _ in range(40)]
            asked = [await (await connect(ASK))[0].readuntil(b"hello") for _ in range(3)]
            await asyncio.gather(*(rest_of(reader) for reader, _ in silent[:36]))
            return asked, sum(not reader.at_eof() for reader, _ in silent)

    asked, num_left = asyncio.run(scenario())
    assert [answer.split(b"\r\n")[0] for answer in asked] == [b"HTTP/1.1 200 OK"] * 3
    assert num_left <= 4


def test_those_who_are_being_answered_stay_and_a_further_one_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect_server, "MAX_CONNECTIONS", 3)

    async def scenario() -> tuple[bytes, list[bytes]]:
        held = Held()
        async with serving(held) as connect:
            busy = [await connect(ASK) for _ in range(3)]
            async with asyncio.timeout(SECONDS):
                while held.num_asked < 3:
                    await asyncio.sleep(0.005)
            further = await rest_of((await connect(ASK))[0])
            held.goes_on.set()
            return further, [await reader.readuntil(b"hello") for reader, _ in busy]

    further, answers = asyncio.run(scenario())
    assert (further, len(answers)) == (b"", 3)


def test_one_that_reads_nothing_of_its_answer_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect_protocol, "SEND_SECONDS", 0.1)
    is_over = asyncio.Event()
    lost = InspectProtocol.connection_lost

    def connection_lost(self: InspectProtocol, exc: Exception | None) -> None:
        lost(self, exc)
        is_over.set()

    monkeypatch.setattr(InspectProtocol, "connection_lost", connection_lost)
    size = 64 << 20

    async def scenario() -> int:
        async with serving(PlainTextResponse(b"x" * size)) as connect:
            reader, writer = await connect(b"")
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(ASK)
            async with asyncio.timeout(SECONDS):
                while not is_over.is_set():
                    await asyncio.sleep(0.005)
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            return len(await rest_of(reader))

    assert asyncio.run(scenario()) < size


@pytest.mark.parametrize(("num_files", "limit"), [(1 << 20, 128), (-1, 128), (1024, 128), (200, 25), (4, 1)])
def test_connections_leave_files_for_what_else_is_open(num_files: int, limit: int) -> None:
    assert connection_limit(num_files) == limit


@pytest.mark.parametrize(
    "endless",
    [b"GET / HTTP/1.1\r\na: ", b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\na: "],
    ids=["head", "trailer"],
)
def test_a_request_without_an_end_is_cut_off_by_its_size(endless: bytes) -> None:
    async def scenario() -> tuple[bytes, bytes]:
        async with serving(echo) as connect:
            reader, writer = await connect(endless)
            with contextlib.suppress(ConnectionError):
                for _ in range(2 * inspect_protocol.MAX_REQUEST_BYTES // 65536):
                    writer.write(b"a" * 65536)
                    await writer.drain()
            cut = await rest_of(reader)
            other, _ = await connect(ASK * 30_000)  # more bytes, but each request is whole
            return cut, await asyncio.wait_for(other.readexactly(15), SECONDS)

    cut, answered = asyncio.run(scenario())
    assert cut == b""
    assert answered == b"HTTP/1.1 200 OK"

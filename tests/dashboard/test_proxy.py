"""The way through the dashboard to the Observer: few listen at once, none goes up, nothing is sniffed."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.types import Message

from vllm_obs.dashboard.proxy import MAX_STREAMS, Proxy
from vllm_obs.dashboard.source import Source
from vllm_obs.telemetry.inspect_client import InspectorError

STREAM = "/observer/inspect/streams/steps"
SECONDS = 20.0
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nx-secret: 1\r\nconnection: close\r\n\r\n"


class FakeObserver:
    """Answers every GET with the path it got; those of streams go on until they are closed."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.may_answer = asyncio.Event()
        self.num_open = 0
        self.is_cut = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_open += 1
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.asked.append(head.decode().split(" ")[1])
            await self.may_answer.wait()
            if not self.is_cut:
                writer.write(HEAD + f"data: {self.asked[-1]}\n\n".encode())
                await writer.drain()
            if "/streams/" in self.asked[-1] and not self.is_cut:
                await reader.read()
        finally:
            self.num_open -= 1
            writer.close()


class Client:
    """One GET through the application; it stays until `leave`."""

    def __init__(self, app: Starlette, path: str, query: bytes = b"a=1") -> None:
        self.sent: list[Message] = []
        self._gone = asyncio.Event()
        self._is_asked = False
        scope = {"type": "http", "method": "GET", "path": path, "headers": [], "query_string": query,
                 "http_version": "1.1", "root_path": "", "scheme": "http"}  # fmt: skip
        self.task = asyncio.create_task(app(scope, self._receive, self._send))

    async def _receive(self) -> Message:
        if not self._is_asked:
            self._is_asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        self.sent.append(message)

    @property
    def status(self) -> int:
        """Of the answer, 0 while there is none."""
        return int(self.sent[0]["status"]) if self.sent else 0

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent[1:])

    async def leave(self) -> None:
        self._gone.set()
        await self.task


class Scene:
    """A proxy, the application it is mounted in, and the Observer behind it."""

    def __init__(self, proxy: Proxy, observer: FakeObserver, source: Source) -> None:
        self.proxy, self.observer, self.source = proxy, observer, source
        self.app = Starlette(routes=list(proxy.routes))

    def ask(self, path: str) -> Client:
        return Client(self.app, path)

    async def answered(self, path: str) -> Client:
        client = self.ask(path)
        await client.leave()
        return client


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not is_so():
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def scene(locate: Callable[[], str] | None = None) -> AsyncIterator[Scene]:
    observer = FakeObserver()
    server = await asyncio.start_server(observer.serve, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    source = Source(locate or (lambda: address))
    proxy = Proxy(source)
    try:
        yield Scene(proxy, observer, source)
    finally:
        await proxy.close()
        server.close()
        await until(lambda: not observer.num_open)


def run(body: Callable[[], Any]) -> None:
    asyncio.run(body())


def test_of_many_who_come_at_once_no_more_than_the_limit_listen() -> None:
    async def body() -> None:
        async with scene() as found:
            clients = [found.ask(STREAM) for _ in range(MAX_STREAMS + 24)]
            await until(lambda: sum(client.status == 503 for client in clients) == 24)
            await until(lambda: len(found.observer.asked) == MAX_STREAMS)
            found.observer.may_answer.set()
            await until(lambda: sum(client.status == 200 for client in clients) == MAX_STREAMS)
            for client in clients:
                await client.leave()
            await until(lambda: not found.observer.num_open)
            again = [found.ask(STREAM) for _ in range(MAX_STREAMS)]
            await until(lambda: [client.status for client in again] == [200] * MAX_STREAMS)
            for client in again:
                await client.leave()

    run(body)


@pytest.mark.parametrize("is_located", [True, False])
def test_stream_that_fails_leaves_its_place(is_located: bool) -> None:
    def nowhere() -> str:
        raise InspectorError("no live run is known")

    async def body() -> None:
        async with scene(None if is_located else nowhere) as found:
            found.observer.is_cut = True
            found.observer.may_answer.set()
            statuses = [(await found.answered(STREAM)).status for _ in range(MAX_STREAMS + 2)]
            assert statuses == [502] * (MAX_STREAMS + 2)

    run(body)


def test_one_that_is_given_up_while_it_asks_leaves_its_place() -> None:
    async def body() -> None:
        async with scene() as found:
            clients = [found.ask(STREAM) for _ in range(MAX_STREAMS)]
            await until(lambda: len(found.observer.asked) == MAX_STREAMS)
            for client in clients:
                client.task.cancel()
            await asyncio.gather(*(client.task for client in clients), return_exceptions=True)
            found.observer.may_answer.set()
            late = found.ask(STREAM)
            await until(lambda: late.status == 200)
            await late.leave()

    run(body)


def test_client_that_left_before_the_first_byte_leaves_its_place() -> None:
    async def body() -> None:
        async with scene() as found:
            clients = [found.ask(STREAM) for _ in range(MAX_STREAMS)]
            await until(lambda: len(found.observer.asked) == MAX_STREAMS)
            leaving = [asyncio.create_task(client.leave()) for client in clients]
            found.observer.may_answer.set()
            await asyncio.gather(*leaving)
            late = found.ask(STREAM)
            await until(lambda: late.status == 200)
            await late.leave()

    run(body)


@pytest.mark.parametrize(
    "path", ["inspect/../metrics", "inspect/streams/../../metrics", "inspect/a/..", "inspect/./state", "metrics"]
)
def test_what_goes_up_is_not_passed_on(path: str) -> None:
    async def body() -> None:
        async with scene() as found:
            found.observer.may_answer.set()
            client = await found.answered(f"/observer/{path}")
            assert (client.status, found.observer.asked) == (404, [])

    run(body)


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("inspect/requests/a b", "/inspect/requests/a%20b?a=1"),
        ("inspect/requests/a?b#c", "/inspect/requests/a%3Fb%23c?a=1"),
        ("inspect/requests/%2e%2e/x", "/inspect/requests/%252e%252e/x?a=1"),
    ],
)
def test_names_reach_the_observer_as_they_are(path: str, asked: str) -> None:
    async def body() -> None:
        async with scene() as found:
            found.observer.may_answer.set()
            client = await found.answered(f"/observer/{path}")
            assert (client.status, client.body) == (200, f"data: {asked}\n\n".encode())

    run(body)


def test_answers_are_what_they_say_they_are() -> None:
    async def body() -> None:
        async with scene() as found:
            found.observer.may_answer.set()
            client = await found.answered("/observer/inspect/state")
            assert client.headers == {"content-type": "text/event-stream", "x-content-type-options": "nosniff"}
            refused = await found.answered("/observer/metrics")
            assert refused.headers["x-content-type-options"] == "nosniff"

    run(body)


def test_of_several_servers_the_one_that_the_address_names_is_asked() -> None:
    async def body() -> None:
        async with scene() as first, scene() as second:
            proxy = Proxy(first.source, [second.source])
            both = Scene(proxy, first.observer, first.source)
            for each in (first, second):
                each.observer.may_answer.set()
            for number in ("0", "1", "2", "x", "1"):
                await Client(both.app, "/observer/inspect/state", f"server={number}&a=1".encode()).leave()
            await proxy.close()
            assert first.observer.asked == ["/inspect/state?a=1"] * 3
            assert second.observer.asked == ["/inspect/state?a=1"] * 2

    run(body)

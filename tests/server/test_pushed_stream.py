"""Events that are written past ASGI: the same stream in the same order, however the connection takes them."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any
from zlib import crc32

import httpx
import orjson
import pytest
from event_assembler import told_message, told_response, without_new
from fake_engine import ERROR_TOKEN, FakeEngine
from http_app import Served, served, tokenizer
from in_loop import in_loop
from random_exchanges import TEXTS, random_exchange
from random_turns import random_message, random_response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from stream_assembler import chunks_of, told_by_stream

from vllm_obs.engine.messages import EngineCoreRequest
from vllm_obs.server.config import ServerConfig
from vllm_obs.server.text_frame import TextFrame
from vllm_obs.telemetry.records import HttpRequestEnded

SERVER = ServerConfig(enable_auto_tool_choice=True, tool_call_parser="hermes", reasoning_parser="qwen3")
TEXT = {"prompt": "Hi", "stream": True, "max_tokens": 40}
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "stream": True, "max_tokens": 40}


class Writer:
    """A connection's writer: parts are written as they come among what is sent; `is_ready` says whether it may."""

    def __init__(self, is_ready: Callable[[], bool]) -> None:
        self.parts: list[bytes] = []
        self.num_written = 0
        self.num_bytes = 0
        self.begun_at = 0
        self.has_begun = False
        self._is_ready = is_ready

    @property
    def is_open(self) -> bool:
        return self.has_begun and self._is_ready()

    def write(self, part: bytes) -> None:
        assert part
        self.parts.append(part)
        self.num_written += 1
        self.num_bytes += len(part)
        self.begun_at = self.begun_at or 1


class Connections:
    """The application on connections that have a writer."""

    def __init__(self, app: ASGIApp, is_ready: Callable[[], bool]) -> None:
        self.writers: list[Writer] = []
        self._app = app
        self._is_ready = is_ready

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writer = Writer(self._is_ready)
        self.writers.append(writer)
        scope.setdefault("state", {})["body_writer"] = writer

        async def send_in_order(message: Message) -> None:
            if message["type"] == "http.response.start":
                writer.has_begun = True
                await send(message)
                return
            writer.parts.append(message.get("body", b""))
            if not message.get("more_body", False):
                await send({"type": "http.response.body", "body": b"".join(writer.parts)})

        await self._app(scope, receive, send_in_order)


@asynccontextmanager
async def pushed(
    script: Callable[[EngineCoreRequest], Sequence[int]], is_ready: Callable[[], bool] = lambda: True
) -> AsyncIterator[tuple[Served, Connections, Callable[..., Awaitable[httpx.Response]]]]:
    async with served(FakeEngine(script), SERVER) as app:
        connections = Connections(app.app, is_ready)
        transport = httpx.ASGITransport(connections, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            yield app, connections, lambda path, body: client.post(path, json=body)


def say(request: EngineCoreRequest) -> list[int]:
    """The same for the same prompt and index, with half characters in it."""
    prompt = crc32(request.prompt_token_ids.tobytes())
    rng = random.Random(prompt + request.sampling.sequence_index)
    token_ids = tokenizer().encode(rng.choice(TEXTS), add_special_tokens=False)
    return [*token_ids, *rng.choices(range(100, 400), k=5), 2]


@pytest.mark.parametrize("share", [1.0, 0.6])
def test_a_stream_is_the_same_however_its_events_are_written(share: float) -> None:
    ready = random.Random(7)

    async def scenario() -> None:
        async with pushed(say, lambda: ready.random() < share) as (app, connections, post):
            for number in range(120):
                exchange = random_exchange(number)
                body = exchange.streamed | {"seed": number}
                sent, written = await app.post(exchange.path, body), await post(exchange.path, body)
                assert told_by_stream(chunks_of(written.text)) == told_by_stream(chunks_of(sent.text)), number
            assert sum(writer.num_written for writer in connections.writers) > 120

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("path", "make", "tell"),
    [("/v1/responses", random_response, told_response), ("/v1/messages", random_message, told_message)],
)
def test_typed_events_are_the_same_however_they_are_written(
    path: str, make: Callable[[int], Any], tell: Callable[[str], Any]
) -> None:
    ready = random.Random(7)

    async def scenario() -> None:
        async with pushed(say, lambda: ready.random() < 0.8) as (app, connections, post):
            for number in range(60):
                body = {**make(number), "stream": True}
                sent, written = await app.post(path, body), await post(path, body)
                assert without_new(tell(written.text)) == without_new(tell(sent.text)), number
            assert sum(writer.num_written for writer in connections.writers) > 60

    asyncio.run(scenario())


@pytest.mark.parametrize(("path", "body"), [("/v1/completions", TEXT), ("/v1/chat/completions", CHAT)])
def test_all_but_a_few_events_are_written_at_once(path: str, body: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with pushed(lambda request: [30] * 40) as (app, connections, post):
            reply = await post(path, body)
            assert reply.text.count("data: ") == 41 + (path != "/v1/completions")
            assert connections.writers[0].num_written >= 39
            (ended,) = app.recorder.of(HttpRequestEnded)
            assert isinstance(ended, HttpRequestEnded)
            assert ended.num_response_bytes == len(reply.content)
            assert app.llm.num_queued_deltas == 0

    asyncio.run(scenario())


def test_a_sequence_that_fails_after_written_events_ends_its_stream_with_the_error() -> None:
    async def scenario() -> None:
        async with pushed(lambda request: [30, 30, 30, ERROR_TOKEN]) as (_, connections, post):
            events = (await post("/v1/completions", TEXT)).text.split("\n\n")[:-1]
            assert connections.writers[0].num_written >= 2
            assert '"reason":"internal_error"' in events[-1]
            assert sum('"error"' in event for event in events) == 1
            assert not any("[DONE]" in event for event in events)

    asyncio.run(scenario())


@in_loop
async def test_an_event_that_cannot_be_made_fails_its_own_stream_only(monkeypatch: pytest.MonkeyPatch) -> None:
    make = TextFrame.__call__

    def make_or_fail(frame: TextFrame, text: str) -> bytes:
        if text == "?":
            raise ValueError("/secret/path")
        return make(frame, text)

    monkeypatch.setattr(TextFrame, "__call__", make_or_fail)
    question = tokenizer().encode("?", add_special_tokens=False)[0]
    scripts = iter([[30, 30, question, 30], [30, 30, 30, 2]])
    async with pushed(lambda request: next(scripts)) as (app, _, post):
        bad = asyncio.ensure_future(post("/v1/completions", TEXT))
        while not app.engine.added:
            await asyncio.sleep(0)
        good = await post("/v1/completions", TEXT)
        assert good.text.endswith("data: [DONE]\n\n")
        assert '"reason":"internal_error"' in (await bad).text
        assert "secret" not in (await bad).text
        assert app.llm.num_in_flight == 0


def test_a_text_frame_writes_what_is_written_without_it() -> None:
    def write(text: str) -> bytes:
        return b'{"a":' + orjson.dumps(text) + b',"b":[1]}'

    frame = TextFrame(write)
    for text in ("", "plain", 'a "quoted" \\ one', "\n\t\x00\x7f", "é 日本 🙂"):
        assert frame(text) == write(text)

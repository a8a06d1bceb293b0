"""Streams: the chunks of a live vLLM in their order, one ending each, errors as the last event."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_engine import ERROR_TOKEN, FakeEngine
from http_app import Served, served, tokenizer
from reply_shape import shape_of

from vllm_obs.server.config import ServerConfig
from vllm_obs.server.sse import EventStream
from vllm_obs.telemetry.records import HttpRequestEnded

SHAPES = json.loads((Path(__file__).parent / "reply_shapes.json").read_text())

CHAT = {
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "temperature": 0,
    "stream": True,
}
TEXT = {"prompt": "The capital of France is", "stream": True}
PARIS = [504, 3575, 282, 4649, 314, 7042, 30, 2]
DONE = "[DONE]"

Meanwhile = Callable[[Served], Awaitable[None]]


async def nothing(app: Served) -> None:
    """No disturbance."""


def stream(
    path: str,
    body: dict[str, Any],
    script: Sequence[int] = PARIS,
    server: ServerConfig | None = None,
    meanwhile: Meanwhile = nothing,
) -> list[Any]:
    """The events of a stream, parsed; [DONE] as it is."""

    async def scenario() -> list[Any]:
        async with served(FakeEngine(lambda request: script), server) as app:
            disturbance = asyncio.create_task(meanwhile(app))
            reply = await app.post(path, body)
            await disturbance
            assert reply.status_code == 200, reply.text
            assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
            assert app.engine.num_running == 0
            assert app.llm.num_in_flight == 0
            assert app.api.num_open == 0
            assert reply.text.endswith("\n\n")
            events = [event.removeprefix("data: ") for event in reply.text.split("\n\n")[:-1]]
            return [event if event == DONE else json.loads(event) for event in events]

    return asyncio.run(scenario())


def choices(events: list[Any], index: int = 0) -> list[dict[str, Any]]:
    return [c for event in events if event != DONE for c in event.get("choices", ()) if c["index"] == index]


def distinct_shapes(events: list[Any]) -> list[str]:
    shapes: list[str] = []
    for event in events[:-1]:
        shape = json.dumps(shape_of(event))
        if shape not in shapes[-1:]:
            shapes.append(shape)
    return shapes


@pytest.mark.parametrize(
    ("name", "path", "body", "script"),
    [
        ("chat_stream", "/v1/chat/completions", CHAT, PARIS),
        ("comp_stream", "/v1/completions", {**TEXT, "max_tokens": 12}, [30] * 12),
    ],
)
def test_chunks_have_the_keys_of_vllm_in_their_order(
    name: str, path: str, body: dict[str, Any], script: list[int]
) -> None:
    events = stream(path, {**body, "stream_options": {"include_usage": True}}, script)
    assert distinct_shapes(events) == [json.dumps(shape) for shape in SHAPES[name]]
    assert events[-1] == DONE
    assert len({event["id"] for event in events[:-1]}) == 1


def test_chat_stream_is_role_then_text_then_ending() -> None:
    events = stream("/v1/chat/completions", CHAT)
    deltas = [choice["delta"] for choice in choices(events)]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert [delta["content"] for delta in deltas[1:]] == [
        "The",
        " capital",
        " of",
        " France",
        " is",
        " Paris",
        ".",
        "",
    ]
    assert [choice["finish_reason"] for choice in choices(events)] == [None] * 8 + ["stop"]
    assert events.count(DONE) == 1
    assert not any("usage" in event for event in events[:-1])


def test_usage_comes_last_without_choices_when_asked_for() -> None:
    events = stream("/v1/chat/completions", {**CHAT, "stream_options": {"include_usage": True}})
    assert events[-2]["choices"] == []
    assert events[-2]["usage"] == {"prompt_tokens": 37, "total_tokens": 45, "completion_tokens": 8}
    assert not any("usage" in event for event in events[:-2])


def test_empty_stream_options_ask_for_nothing() -> None:
    events = stream("/v1/chat/completions", {**CHAT, "stream_options": {}})
    assert not any("usage" in event for event in events[:-1])


def test_usage_can_be_forced_by_the_operator() -> None:
    events = stream("/v1/completions", TEXT, server=ServerConfig(enable_force_include_usage=True))
    assert events[-2]["usage"]["completion_tokens"] == 8


def test_continuous_usage_counts_up_in_every_chunk() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = stream("/v1/completions", {**TEXT, "stream_options": options})
    counts = [event["usage"]["completion_tokens"] for event in events[:-1]]
    assert counts == sorted(counts)
    assert counts[-1] == 8
    assert all(event["usage"]["prompt_tokens"] == 5 for event in events[:-1])


def test_n_choices_each_have_their_role_and_one_ending() -> None:
    events = stream("/v1/chat/completions", {**CHAT, "n": 3, "temperature": 1})
    for index in range(3):
        own = choices(events, index)
        assert own[0]["delta"]["role"] == "assistant"
        assert all("role" not in choice["delta"] for choice in own[1:])
        assert "".join(choice["delta"]["content"] for choice in own) == "The capital of France is Paris."
        assert [c["finish_reason"] for c in own] == [None] * (len(own) - 1) + ["stop"]
    assert events[-1] == DONE


def test_several_prompts_stream_under_their_numbers() -> None:
    events = stream("/v1/completions", {**TEXT, "prompt": ["A", "B", "C"], "n": 2})
    texts = ["".join(choice["text"] for choice in choices(events, index)) for index in range(6)]
    assert texts == ["The capital of France is Paris."] * 6


def test_echo_comes_with_the_first_chunk_and_its_logprobs() -> None:
    events = stream("/v1/completions", {**TEXT, "echo": True, "logprobs": 1})
    own = choices(events)
    assert "".join(choice["text"] for choice in own).startswith("The capital of France isThe capital of")
    tokens = [token for choice in own for token in choice["logprobs"]["tokens"]]
    assert tokens[:7] == ["The", " capital", " of", " France", " is", "The", " capital"]
    offsets = [offset for choice in own for offset in choice["logprobs"]["text_offset"]]
    assert offsets[:8] == [0, 3, 11, 14, 21, 24, 27, 35]
    assert own[0]["logprobs"]["token_logprobs"][0] is None


def test_stream_and_whole_reply_carry_the_same_logprobs() -> None:
    events = stream("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 3})
    entries = [
        entry for choice in choices(events) if choice["logprobs"] for entry in choice["logprobs"]["content"]
    ]
    assert [entry["token"] for entry in entries] == [tokenizer().token_str(token) for token in PARIS]
    assert all(len(entry["top_logprobs"]) == 3 for entry in entries)


def test_token_ids_are_streamed_when_asked_for() -> None:
    chat = stream("/v1/chat/completions", {**CHAT, "return_token_ids": True})
    assert len(chat[0]["prompt_token_ids"]) == 37
    assert [token for choice in choices(chat)[1:] for token in choice["token_ids"]] == PARIS
    text = choices(stream("/v1/completions", {**TEXT, "return_token_ids": True}))
    assert text[0]["prompt_token_ids"] == [504, 3575, 282, 4649, 314]
    assert all(choice["prompt_token_ids"] is None for choice in text[1:])


def test_no_event_holds_half_a_character() -> None:
    script = [*tokenizer().encode("🌶️🔥é日本", add_special_tokens=False), 2]
    events = stream("/v1/chat/completions", CHAT, script)
    texts = [choice["delta"]["content"] for choice in choices(events)]
    assert "".join(texts) == "🌶️🔥é日本"
    assert not any("\ufffd" in text for text in texts)
    assert all(texts[1:-1])


def error_of(events: list[Any]) -> dict[str, Any]:
    assert DONE not in events
    assert not any("error" in event for event in events[:-1])
    error: dict[str, Any] = events[-1]["error"]
    assert list(error) == ["message", "type", "param", "code", "reason"]
    return error


def test_failing_sequence_ends_the_stream_with_an_error_event() -> None:
    error = error_of(stream("/v1/completions", {**TEXT, "prompt": ["A", "B"]}, [504, ERROR_TOKEN]))
    assert (error["reason"], error["code"], error["type"]) == ("internal_error", 500, "InternalServerError")
    assert "secret" not in error["message"]


def test_death_of_the_engine_ends_the_stream_with_engine_dead() -> None:
    async def kill(app: Served) -> None:
        app.engine.go.clear()
        while not app.engine.added:
            await asyncio.sleep(0.01)
        app.engine.die("killed by signal 9 at /secret/path")

    error = error_of(stream("/v1/chat/completions", CHAT, meanwhile=kill))
    assert (error["reason"], error["code"]) == ("engine_dead", 500)
    assert "secret" not in error["message"]


def test_ending_the_open_streams_says_shutting_down() -> None:
    async def end(app: Served) -> None:
        app.engine.go.clear()
        while not app.engine.added:
            await asyncio.sleep(0.01)
        app.llm.end_open()

    error = error_of(stream("/v1/chat/completions", CHAT, meanwhile=end))
    assert (error["reason"], error["code"]) == ("shutting_down", 503)


class Source:
    """A source that counts how often it was closed."""

    request_id = "request-1"

    def __init__(self) -> None:
        self.num_closed = 0

    async def aclose(self) -> None:
        self.num_closed += 1


def test_source_is_closed_though_no_frame_was_begun() -> None:
    async def frames() -> Any:
        yield b"never"

    async def send(message: Any) -> None:
        raise OSError("gone")

    async def scenario() -> None:
        with pytest.raises(OSError, match="gone"):
            await EventStream(frames(), source)({"type": "http"}, send, send)

    source = Source()
    asyncio.run(scenario())
    assert source.num_closed == 1


def test_bug_in_the_stream_is_an_internal_error_with_an_id_only(caplog: pytest.LogCaptureFixture) -> None:
    async def broken() -> Any:
        yield b'data: {"choices":[]}\n\n'
        raise KeyError("/secret/path")

    scope: dict[str, Any] = {"type": "http"}
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        await asyncio.sleep(60)

    async def scenario() -> None:
        await EventStream(broken(), source)(scope, receive, send)

    source = Source()
    asyncio.run(scenario())
    assert source.num_closed == 1
    last = sent[-2]["body"].decode()
    assert "request-1" in last
    assert "secret" not in last
    assert "secret" in caplog.text
    assert sent[-1] == {"type": "http.response.body", "body": b""}
    assert scope["state"]["reason"] == "internal_error"


def test_refused_request_is_no_stream() -> None:
    async def scenario() -> Any:
        async with served(FakeEngine(lambda request: PARIS)) as app:
            return await app.post("/v1/completions", {**TEXT, "temperature": 3})

    reply = asyncio.run(scenario())
    assert (reply.status_code, reply.headers["content-type"]) == (400, "application/json")
    assert reply.json()["error"]["param"] == "temperature"


def test_a_request_is_recorded_once_its_last_byte_is_out() -> None:
    recorded: list[Any] = []

    async def keep(app: Served) -> None:
        recorded.append(app.recorder)

    stream("/v1/completions", {**TEXT, "prompt": ["A", "B"]}, meanwhile=keep)
    (ended,) = recorded[0].of(HttpRequestEnded)
    assert (ended.status, ended.handler, ended.reason) == (200, "/v1/completions", "")

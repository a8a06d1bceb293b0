"""Streams of /v1/messages: their events in order, one ending each, and the same content as the whole reply."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from fake_engine import ERROR_TOKEN, FakeEngine
from http_app import MODEL, Served, served, socket_server, tokenizer
from hypothesis import given
from hypothesis import strategies as st

from vllm_obs.server.anthropic_blocks import BlockWriter, content_of
from vllm_obs.server.config import ServerConfig
from vllm_obs.server.message_reader import MessageReader
from vllm_obs.server.reasoning import ThinkParser
from vllm_obs.server.tool_calls.hermes import HermesParser
from vllm_obs.telemetry.records import HttpRequestEnded

PATH = "/v1/messages"
ASK: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 200,
    "messages": [{"role": "user", "content": "hi"}],
    "stream": True,
}
TOOLS = [{"name": "ping", "input_schema": {"type": "object"}}]
SERVER = ServerConfig(enable_auto_tool_choice=True, tool_call_parser="hermes", reasoning_parser="qwen3")
TALK = '<think>Hm.</think>Look:\n<tool_call>{"name": "ping", "arguments": {"a": 1}}</tool_call>\nDone.'


def words(text: str) -> list[int]:
    return [*tokenizer().encode(text, add_special_tokens=False), 2]


def parsed(text: str) -> list[dict[str, Any]]:
    """The events of a stream; the name of each is its type."""
    events = []
    for event in text.split("\n\n")[:-1]:
        if event.startswith(":"):
            continue
        name, data = event.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def stream(script: Sequence[int], fields: dict[str, Any], server: ServerConfig = SERVER) -> list[dict[str, Any]]:
    async def scenario() -> list[dict[str, Any]]:
        async with served(FakeEngine(lambda request: script), server) as app:
            reply = await app.post(PATH, {**ASK, **fields})
            assert reply.status_code == 200, reply.text
            assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
            assert (app.engine.num_running, app.llm.num_in_flight, app.api.num_open) == (0, 0, 0)
            return parsed(reply.text)

    return asyncio.run(scenario())


def accumulated(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The content as a client puts it together; a block is open from its start to its stop, one at a time."""
    blocks: list[dict[str, Any]] = []
    texts: list[str] = []
    open_index = None
    for event in events:
        match event["type"]:
            case "content_block_start":
                assert (open_index, event["index"]) == (None, len(blocks))
                open_index = event["index"]
                blocks.append(event["content_block"])
                texts.append("")
            case "content_block_delta":
                assert open_index == event["index"]
                delta = event["delta"]
                texts[-1] += delta.get("text", "") + delta.get("thinking", "") + delta.get("partial_json", "")
            case "content_block_stop":
                assert open_index == event["index"]
                open_index = None
    for block, text in zip(blocks, texts, strict=True):
        kind = block["type"]
        block["input" if kind == "tool_use" else kind] = json.loads(text or "{}") if kind == "tool_use" else text
    return without_ids(blocks)


def without_ids(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in block.items() if name != "id"} for block in blocks]


def test_the_events_of_a_text_are_in_their_order() -> None:
    events = stream(words("Hello there"), {})
    assert [event["type"] for event in events] == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    message = events[0]["message"]
    assert (message["type"], message["role"], message["content"]) == ("message", "assistant", [])
    assert (message["stop_reason"], message["usage"]["input_tokens"]) == (None, 31)
    assert events[3]["delta"] == {"type": "text_delta", "text": "Hello"}
    assert events[-2]["delta"] == {
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "stop_details": None,
        "container": None,
    }
    assert (events[-2]["usage"]["input_tokens"], events[-2]["usage"]["output_tokens"]) == (31, 3)


def test_thoughts_text_and_calls_are_blocks_in_a_row() -> None:
    events = stream(words(TALK), {"tools": TOOLS, "thinking": {"type": "enabled"}})
    assert accumulated(events) == [
        {"type": "thinking", "thinking": "Hm.", "signature": ""},
        {"type": "text", "text": "Look:", "citations": None},
        {"type": "tool_use", "name": "ping", "input": {"a": 1}, "caller": {"type": "direct"}},
        {"type": "text", "text": "\nDone.", "citations": None},
    ]
    assert {"type": "signature_delta", "signature": ""} in [event.get("delta") for event in events]
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


@pytest.mark.parametrize(
    ("text", "fields", "reason", "sequence"),
    [
        ("One two. Six", {"stop_sequences": [" two"]}, "stop_sequence", " two"),
        ("One two.", {"max_tokens": 2}, "max_tokens", None),
        ("", {}, "end_turn", None),
        ('{"a": 2}', {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "ping"}}, "tool_use", None),
        (TALK, {"tools": TOOLS}, "tool_use", None),
    ],
)
def test_a_stream_comes_to_the_whole_reply(
    text: str, fields: dict[str, Any], reason: str, sequence: str | None
) -> None:
    async def whole() -> dict[str, Any]:
        async with served(FakeEngine(lambda request: words(text)), SERVER) as app:
            return dict((await app.post(PATH, {**ASK, **fields, "stream": False})).json())

    events, reply = stream(words(text), fields), asyncio.run(whole())
    assert accumulated(events) == without_ids(reply["content"])
    ending = events[-2]["delta"]
    assert (ending["stop_reason"], ending["stop_sequence"]) == (reason, sequence)
    assert (reply["stop_reason"], reply["stop_sequence"]) == (reason, sequence)
    assert events[-2]["usage"] == reply["usage"]


@given(st.lists(st.integers(0, len(TALK)), max_size=20), st.booleans())
def test_however_text_is_cut_its_blocks_are_the_same(cuts: list[int], shows_thinking: bool) -> None:
    def blocks(pieces: list[str]) -> list[dict[str, Any]]:
        reader, writer = (
            MessageReader(ThinkParser(starts_inside=False), HermesParser([])),
            BlockWriter(shows_thinking),
        )
        events = [event for piece in pieces for event in writer.write(reader.parts(piece))]
        return without_ids(content_of([*events, *writer.write(reader.parts("", is_last=True)), *writer.close()]))

    ends = [*sorted(cuts), len(TALK)]
    pieces = [TALK[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    assert blocks(pieces) == blocks([TALK])


def test_a_failure_is_the_last_event() -> None:
    async def scenario() -> None:
        async with served(FakeEngine(lambda request: [30, ERROR_TOKEN])) as app:
            reply = await app.post(PATH, ASK)
            *events, last = parsed(reply.text)
            assert [event["type"] for event in events][:2] == ["message_start", "ping"]
            assert last == {
                "type": "error",
                "error": {
                    "message": "the request failed inside the engine",
                    "type": "InternalServerError",
                    "param": None,
                    "code": 500,
                    "reason": "internal_error",
                },
            }
            assert app.recorder.of(HttpRequestEnded)[0].reason == "internal_error"
            assert app.llm.num_in_flight == 0

    asyncio.run(scenario())


def test_an_engine_that_dies_ends_the_stream_with_its_reason() -> None:
    async def scenario() -> list[dict[str, Any]]:
        engine = FakeEngine(lambda request: [30] * 100, seconds_a_token=0.01)
        async with served(engine) as app:

            async def kill(app: Served) -> None:
                while app.engine.num_tokens_sent < 3:
                    await asyncio.sleep(0.001)
                app.engine.die()

            killer = asyncio.create_task(kill(app))
            reply = await app.post(PATH, ASK)
            await killer
            return parsed(reply.text)

    last = asyncio.run(scenario())[-1]
    assert (last["type"], last["error"]["reason"]) == ("error", "engine_dead")


def test_a_client_that_goes_aborts_what_runs() -> None:
    body = json.dumps({**ASK, "max_tokens": 1000}).encode()
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket_server(seconds_a_token=0.005) as server:
        with server.connect() as connection:
            connection.sendall(head.encode() + body)
            assert b"200" in connection.recv(100)

        async def gone() -> int:
            async with asyncio.timeout(3):
                while server.served.engine.num_running or server.served.llm.num_in_flight:
                    await asyncio.sleep(0.01)
            return len(server.served.engine.aborted)

        assert server.call(gone()) == 1


def test_cached_tokens_are_told_apart_where_the_server_tells_them() -> None:
    server = ServerConfig(enable_prompt_tokens_details=True)
    usage = stream(words("Hi"), {}, server)[-2]["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"] == 31

"""Every reply and event has what the types of the official clients require, which the clients do not check."""

import json
from typing import Any

import pytest
from fake_engine import ERROR_TOKEN, FakeEngine
from http_app import MODEL, served, tokenizer
from in_loop import in_loop
from late_module import LateModule
from openai.types import Completion, CreateEmbeddingResponse, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseItemList, ResponseStreamEvent
from pydantic import TypeAdapter

from vllm_obs.server.config import ServerConfig

CHAT, TEXT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
ANTHROPIC = LateModule("anthropic.types")
"""Its types are told by their names: it takes two seconds to import."""
ASK = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 80}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}
FLAT = {"type": "function", "name": "get_weather", "parameters": PARAMETERS, "strict": True}
USE = {"name": "get_weather", "input_schema": PARAMETERS}
CALLS = '<think>Hm.</think>Look: <tool_call>{"name": "get_weather", "arguments": {"city": "Rome"}}</tool_call>'
FLAGS = ServerConfig(
    enable_auto_tool_choice=True,
    tool_call_parser="hermes",
    reasoning_parser="qwen3",
    enable_prompt_tokens_details=True,
    enable_per_request_metrics=True,
)
LOGPROBS = {"logprobs": True, "top_logprobs": 2}
NAMED = {"type": "function", "name": "get_weather"}
USAGE = {"include_usage": True}
INPUT = {"model": MODEL, "input": "Hi", "max_output_tokens": 80}
TOLD = {
    **INPUT,
    "tools": [FLAT],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [NAMED]},
    "reasoning": {"effort": "low", "summary": "auto"},
    "text": {"format": {"type": "text"}, "verbosity": "low"},
    "metadata": {"a": "b"},
    "top_logprobs": 2,
}
JSON_TEXT = {"format": {"type": "json_schema", "name": "x", "schema": PARAMETERS}}
WHOLE: list[tuple[str, dict[str, Any], Any]] = [
    (CHAT, ASK, ChatCompletion),
    (CHAT, {**ASK, **LOGPROBS, "n": 2, "tools": [WEATHER], "return_token_ids": True}, ChatCompletion),
    (CHAT, {**ASK, "max_tokens": 3}, ChatCompletion),
    (TEXT, {"prompt": "Hi", "logprobs": 1, "n": 2, "max_tokens": 80}, Completion),
    (TEXT, {"prompt": ["Hi", "Ho"], "echo": True, "max_tokens": 0}, Completion),
    ("/v1/embeddings", {"input": ["Hi", "Ho"]}, CreateEmbeddingResponse),
    (RESPONSES, INPUT, Response),
    (RESPONSES, TOLD, Response),
    (RESPONSES, {**INPUT, "max_output_tokens": 3, "text": JSON_TEXT, "instructions": "Do."}, Response),
    (RESPONSES, {**INPUT, "background": True}, Response),
    (RESPONSES, {**INPUT, "tools": [FLAT], "tool_choice": NAMED}, Response),
    (MESSAGES, {**ASK, "model": MODEL}, "Message"),
    (MESSAGES, {**ASK, "model": MODEL, "tools": [USE], "thinking": {"type": "adaptive"}}, "Message"),
    (MESSAGES + "/count_tokens", {"model": MODEL, "messages": ASK["messages"]}, "MessageTokensCount"),
]
STREAMS: list[tuple[str, dict[str, Any], Any]] = [
    (CHAT, {**ASK, **LOGPROBS, "n": 2, "tools": [WEATHER], "stream_options": USAGE}, ChatCompletionChunk),
    (CHAT, {**ASK, "stream_options": USAGE | {"continuous_usage_stats": True}}, ChatCompletionChunk),
    (RESPONSES, INPUT, ResponseStreamEvent),
    (RESPONSES, TOLD, ResponseStreamEvent),
    (RESPONSES, {**TOLD, "background": True}, ResponseStreamEvent),
    (RESPONSES, {**INPUT, "max_output_tokens": 3}, ResponseStreamEvent),
    (MESSAGES, {**ASK, "model": MODEL, "tools": [USE], "thinking": {"type": "adaptive"}}, "RawMessageStreamEvent"),
    (MESSAGES, {**ASK, "model": MODEL, "max_tokens": 3}, "RawMessageStreamEvent"),
]


def engine(*more: int) -> FakeEngine:
    tokens = [*tokenizer().encode(CALLS, add_special_tokens=False), *more, 2]
    return FakeEngine(lambda request: tokens)


def check(kind: Any, text: str) -> None:
    """ValidationError where a field is missing or of another type; no coercion."""
    TypeAdapter(getattr(ANTHROPIC, kind) if isinstance(kind, str) else kind).validate_json(text, strict=True)


@pytest.mark.parametrize(("path", "body", "kind"), WHOLE)
@in_loop
async def test_a_whole_reply_is_what_its_client_says(path: str, body: dict[str, Any], kind: Any) -> None:
    async with served(engine(), FLAGS) as app:
        reply = await app.post(path, body)
        assert reply.status_code == 200, reply.text
        check(kind, reply.text)


@pytest.mark.parametrize(("path", "body", "kind"), STREAMS)
@in_loop
async def test_every_event_is_what_its_client_says(path: str, body: dict[str, Any], kind: Any) -> None:
    async with served(engine(), FLAGS) as app:
        reply = await app.post(path, {**body, "stream": True})
        assert reply.status_code == 200, reply.text
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: ")]
    # A ping is read by the client, and has no type there.
    events = [line for line in lines if line not in ("[DONE]", '{"type":"ping"}')]
    assert len(events) > 3
    for event in events:
        check(kind, event)


@in_loop
async def test_every_text_chunk_but_for_the_end_it_does_not_have_yet_is_what_its_client_says() -> None:
    async with served(engine()) as app:
        body = {"prompt": "Hi", "stream": True, "logprobs": 1, "stream_options": {"include_usage": True}}
        reply = await app.post(TEXT, body)
    for line in reply.text.split("\n\n")[:-2]:
        chunk = json.loads(line.removeprefix("data: "))
        for choice in chunk["choices"]:
            choice["finish_reason"] = choice["finish_reason"] or "stop"
        check(Completion, json.dumps(chunk))


@in_loop
async def test_what_is_kept_is_what_its_client_says() -> None:
    async with served(engine(), FLAGS) as app:
        first = (await app.post(RESPONSES, TOLD)).json()["id"]
        again = await app.post(RESPONSES, {**TOLD, "previous_response_id": first, "instructions": "Do."})
        kept = await app.client.get(f"{RESPONSES}/{again.json()['id']}")
        items = await app.client.get(f"{RESPONSES}/{again.json()['id']}/input_items?limit=100")
        card = await app.client.get(f"/v1/models/{MODEL}")
    check(Response, kept.text)
    check(ResponseItemList, items.text)
    check(Model, card.text)


@in_loop
async def test_what_fails_is_what_its_client_says() -> None:
    async with served(engine(ERROR_TOKEN), FLAGS) as app:
        reply = await app.post(RESPONSES, {**INPUT, "stream": True})
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: ")]
    for event in lines[:-1]:
        check(ResponseStreamEvent, event)
    assert json.loads(lines[-2])["type"] == "response.failed"

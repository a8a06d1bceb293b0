"""What /v1/messages refuses, bodies and keys: always in the one error shape, with a type outside."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine
from http_app import MODEL, served

from vllm_obs.server.config import ServerConfig
from vllm_obs.server.schema_chat_messages import MAX_MESSAGES
from vllm_obs.server.schema_messages_blocks import MAX_BLOCKS

PATH = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
HI = {"role": "user", "content": "hi"}
ASK: dict[str, Any] = {"model": MODEL, "max_tokens": 4, "messages": [HI]}
TOOL = {"name": "ping", "input_schema": {}}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "ping", "input": {}}
KEYS = ServerConfig(api_keys=("s3cret", "second"))


def send(
    body: Any, path: str = PATH, headers: Any = None, server: ServerConfig | None = None, method: str = "POST"
) -> httpx.Response:
    async def scenario() -> httpx.Response:
        async with served(FakeEngine(lambda request: [2]), server) as app:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            json_type = [(b"content-type", b"application/json")]
            reply = await app.client.request(method, path, content=content, headers=[*json_type, *(headers or [])])
            assert app.llm.num_in_flight == 0
            return reply

    return asyncio.run(scenario())


def said(content: Any, role: str = "user") -> dict[str, Any]:
    return {"messages": [HI, {"role": role, "content": content}]}


@pytest.mark.parametrize(
    ("fields", "param", "reason"),
    [
        ({"model": None}, "model", "invalid_value"),
        ({"model": ""}, "model", "invalid_value"),
        ({"max_tokens": None}, "max_tokens", "invalid_value"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_tokens": -1}, "max_tokens", "invalid_value"),
        ({"max_tokens": 2**31}, "max_tokens", "invalid_value"),
        ({"max_tokens": 2040}, "max_tokens", "context_length_exceeded"),
        ({"messages": [{**HI, "content": "word " * 3000}]}, "messages", "context_length_exceeded"),
        ({"max_tokens": 10**30}, "max_tokens", "invalid_value"),
        ({"max_tokens": "4"}, "max_tokens", "invalid_value"),
        ({"max_tokens": True}, "max_tokens", "invalid_value"),
        ({"messages": None}, "messages", "empty_prompt"),
        ({"messages": []}, "messages", "empty_prompt"),
        ({"messages": "hi"}, "messages", "invalid_value"),
        ({"messages": [HI] * (MAX_MESSAGES + 1)}, "messages", "invalid_value"),
        ({"messages": [{"role": "assistant", "content": ""}]}, "messages", "empty_prompt"),
        ({"messages": [{"role": "root", "content": "x"}]}, "messages[0].role", "invalid_value"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "invalid_value"),
        (said(7), "messages[1].content", "invalid_value"),
        (said([]), "messages", "invalid_value"),
        (said(["x"]), "messages[1].content", "invalid_value"),
        (said([{"text": "x"}]), "messages[1].content[0].type", "invalid_value"),
        (said([{"type": "text"}]), "messages[1].content", "invalid_value"),
        (said([{"type": "text", "text": 7}]), "messages[1].content[0].text", "invalid_value"),
        (said([{"type": "x" * 1000}]), "messages[1].content[0].type", "invalid_value"),
        (said([{"type": "text", "text": ""}] * (MAX_BLOCKS + 1)), "messages[1].content", "invalid_value"),
        (said([{"type": "image", "source": {"type": "url", "url": "http://169.254.169.254/"}}]),
         "messages[1].content[0].type", "unsupported"),
        (said([{"type": "document", "source": {}}]), "messages[1].content[0].type", "unsupported"),
        (said([{"type": "server_tool_use"}], "assistant"), "messages[1].content[0].type", "unsupported"),
        (said([CALL]), "messages", "invalid_value"),
        (said([CALL], "assistant"), "messages", "invalid_value"),
        (said([{**CALL, "input": None}], "assistant"), "messages[1].content", "invalid_value"),
        (said([{**CALL, "input": [1]}], "assistant"), "messages[1].content[0].input", "invalid_value"),
        (said([{"type": "tool_result"}]), "messages[1].content", "invalid_value"),
        (said([{"type": "tool_result", "tool_use_id": "x", "content": [{"type": "image"}]}]),
         "messages[1].content[0].content[0].type", "unsupported"),
        (said([{"type": "tool_result", "tool_use_id": "x" * 2000}]),
         "messages[1].content[0].tool_use_id", "invalid_value"),
        ({"system": 7}, "system", "invalid_value"),
        ({"system": [{"type": "image"}]}, "system[0].type", "unsupported"),
        ({"temperature": 1.5}, "temperature", "invalid_value"),
        ({"temperature": float("nan")}, "temperature", "invalid_value"),
        ({"temperature": -1}, "temperature", "invalid_value"),
        ({"top_p": 0}, "top_p", "invalid_value"),
        ({"top_k": -2}, "top_k", "invalid_value"),
        ({"top_k": 2**40}, "top_k", "invalid_value"),
        ({"stop_sequences": "x"}, "stop_sequences", "invalid_value"),
        ({"stop_sequences": [""]}, "stop_sequences", "invalid_value"),
        ({"stop_sequences": ["x"] * 10_000}, "stop_sequences", "invalid_value"),
        ({"stop_sequences": ["x" * 2000]}, "stop_sequences", "invalid_value"),
        ({"metadata": {"user_id": "x" * 2000}}, "metadata.user_id", "invalid_value"),
        ({"thinking": {"type": "sometimes"}}, "thinking.type", "invalid_value"),
        ({"thinking": {"type": "enabled", "budget_tokens": -1}}, "thinking.budget_tokens", "invalid_value"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type", "unsupported"),
        ({"tools": [{"name": "ping"}]}, "tools[0].input_schema", "invalid_value"),
        ({"tools": [{"name": "", "input_schema": {}}]}, "tools[0].name", "invalid_value"),
        ({"tools": [{**TOOL, "input_schema": {"$defs": [1]}}]}, "tools[0].input_schema", "invalid_value"),
        ({"tools": [{**TOOL, "input_schema": {"properties": 1}}]}, "tools[0].input_schema", "invalid_value"),
        ({"tools": [TOOL] * 129}, "tools", "invalid_value"),
        ({"tools": [TOOL]}, "tool_choice", "unsupported"),
        ({"tool_choice": {"type": "any"}}, "tool_choice", "invalid_value"),
        ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice", "invalid_value"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice", "invalid_value"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "pong"}}, "tool_choice", "invalid_value"),
        ({"tools": [{**TOOL, "input_schema": {"pattern": "["}}], "tool_choice": {"type": "any"}},
         "tools", "unsupported"),
        ({"tools": [TOOL], "tool_choice": {"type": "any"},
          "output_config": {"format": {"type": "json_schema", "schema": {}}}},
         "output_config.format", "invalid_value"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"$ref": "#/x"}}}},
         "output_config.format", "unsupported"),
        ({"container": "c_1"}, "container", "unsupported"),
        ({"mcp_servers": [{"url": "http://169.254.169.254/"}]}, "mcp_servers", "unsupported"),
        ({"chat_template": "{{ 1 }}"}, "chat_template", "unsupported"),
        ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs", "unsupported"),
    ],
)  # fmt: skip
def test_bodies_that_do_not_fit_are_refused_by_their_field(
    fields: dict[str, Any], param: str, reason: str
) -> None:
    reply = send({**ASK, **fields})
    body = reply.json()
    assert (reply.status_code, body["error"]["param"], body["error"]["reason"]) == (400, param, reason), body
    assert (list(body), body["type"], body["error"]["type"]) == (["type", "error"], "error", "BadRequestError")
    assert set(body["error"]) == {"message", "type", "param", "code", "reason"}
    assert len(reply.content) <= 4096
    assert reply.headers["request-id"] == reply.headers["x-request-id"]


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        (b"", 400, "invalid_json"),
        (b'{"model":', 400, "invalid_json"),
        (b"[1, 2]", 400, "invalid_body"),
        (b"null", 400, "invalid_body"),
        (b"\xff\xfe{}", 400, "invalid_json"),
        (b'{"a": ' + b"[" * 100_000, 400, "too_deep"),
        (json.dumps({**ASK, **said([{"type": "text", "text": "\ud800"}])}).encode(), 400, "invalid_json"),
        (json.dumps({**ASK, "model": "nope"}).encode(), 404, "model_not_found"),
        (b" " * (33 * 1024 * 1024), 413, "too_large"),
    ],
)
@pytest.mark.parametrize("path", [PATH, COUNT])
def test_hostile_bodies_are_refused_on_both_paths(path: str, body: bytes, status: int, reason: str) -> None:
    reply = send(body, path)
    assert (reply.status_code, reply.json()["type"], reply.json()["error"]["reason"]) == (status, "error", reason)


def test_another_method_and_an_unready_server_have_the_same_shape() -> None:
    reply = send(b"", method="GET")
    assert (reply.status_code, list(reply.json())) == (405, ["type", "error"])

    async def scenario() -> httpx.Response:
        async with served(FakeEngine(lambda request: [2]), ready=False) as app:
            return await app.post(PATH, ASK)

    reply = asyncio.run(scenario())
    assert (reply.status_code, reply.json()["type"], reply.headers["retry-after"]) == (503, "error", "2")


def test_other_paths_have_their_errors_without_a_type_outside() -> None:
    for path in ("/v1/chat/completions", "/v1/messages/", "/v1/messages/batches"):
        assert list(send({}, path).json()) == ["error"]


@pytest.mark.parametrize(
    "headers",
    [
        [(b"x-api-key", b"s3cret")],
        [(b"x-api-key", b"second")],
        [(b"authorization", b"Bearer s3cret")],
        [(b"authorization", b"Bearer s3cret"), (b"x-api-key", b"another")],
    ],
)
@pytest.mark.parametrize("path", [PATH, COUNT])
def test_a_key_may_come_in_either_header(path: str, headers: Any) -> None:
    assert send(ASK, path, headers, KEYS).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"x-api-key", b"")],
        [(b"x-api-key", b"wrong")],
        [(b"x-api-key", b"s3cre")],
        [(b"x-api-key", b"s3cret ")],
        [(b"x-api-key", b"Bearer s3cret")],
        [(b"x-api-key", b"\xff")],
        [(b"x-api-key", b"x" * 1_000_000)],
        [(b"x-api-key", b"s3cret"), (b"x-api-key", b"s3cret")],
        [(b"x-api-key", b"s3cret"), (b"x-api-key", b"wrong")],
        [(b"authorization", b"Bearer wrong"), (b"x-api-key", b"s3cret")],
        [(b"authorization", b""), (b"x-api-key", b"s3cret")],
        [(b"authorization", b"s3cret")],
    ],
)
def test_all_bad_keys_get_the_same_401(headers: Any) -> None:
    reply = send(ASK, headers=headers, server=KEYS)
    assert reply.status_code == 401
    assert reply.content == send(ASK, server=KEYS).content
    assert (reply.json()["type"], reply.json()["error"]["reason"]) == ("error", "unauthorized")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/v1/messages/batches"])
def test_other_paths_do_not_take_the_other_header(path: str) -> None:
    assert send(ASK, path, [(b"x-api-key", b"s3cret")], KEYS).status_code == 401


def test_the_document_describes_the_bodies() -> None:
    async def scenario() -> dict[str, Any]:
        async with served(FakeEngine(lambda request: [2])) as app:
            return dict((await app.client.get("/openapi.json")).json())

    document = asyncio.run(scenario())
    for path, body in ((PATH, "MessagesRequest"), (COUNT, "CountTokensRequest")):
        content = document["paths"][path]["post"]["requestBody"]["content"]
        assert content["application/json"]["schema"] == {"$ref": f"#/components/schemas/{body}"}
    schemas = document["components"]["schemas"]
    assert set(schemas["MessagesRequest"]["required"]) == {"model", "max_tokens"}
    text = json.dumps(document)
    named = {part.partition('"')[0] for part in text.split('"#/components/schemas/')[1:]}
    assert named <= set(schemas)

"""Bodies and ids that /v1/responses does not take, and failures on the way, each with its reason."""

import asyncio
import time
from typing import Any

import httpx
import pytest
from fake_engine import ERROR_TOKEN, FakeEngine
from http_app import MODEL, Served, served
from responses_client import HI, PATH, events_of, saying

from vllm_obs.server.config import Limits, ServerConfig

Row = tuple[dict[str, Any], int, str, str | None]
USER = {"role": "user", "content": "Hi"}
FUNCTION = {"type": "function", "name": "f"}
IMAGE = {"type": "input_image", "image_url": "http://169.254.169.254"}
JSON = {"text": {"format": {"type": "json_object"}}}
LOOP = {"type": "json_schema", "name": "x", "schema": {"$ref": "#"}}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}


def bad(fields: dict[str, Any], param: str | None = None, reason: str = "invalid_value", status: int = 400) -> Row:
    return fields, status, reason, param or next(iter(fields))


def item(fields: Any, param: str = "input", reason: str = "invalid_value") -> Row:
    return bad({"input": [USER, fields]}, param, reason)


ROWS: list[Row] = [
    *(bad({"input": value}, reason="empty_prompt") for value in ("", [], None)),
    bad({"input": [{"type": "reasoning", "summary": []}]}, reason="empty_prompt"),
    *(bad({"input": value}) for value in (5, True, {}, [[]], ["x"], [None], [USER] * 10_000, ["x"] * 10_000)),
    bad({"input": "word " * 3000}, reason="context_length_exceeded"),
    bad({"input": [USER], "max_output_tokens": 2048}, "max_output_tokens", "context_length_exceeded"),
    bad({"model": ""}),
    bad({"model": "nope"}, reason="model_not_found", status=404),
    item({"role": "root", "content": "x"}, "input[1].role"),
    item({"role": "user", "content": 5}, "input[1].content"),
    item({"role": "user", "content": [5]}, "input[1].content"),
    item({"role": "user", "content": [{"type": "input_text", "text": 5}]}, "input[1].content"),
    item({"role": "user", "content": [{"type": "input_text", "text": "x"}] * 5000}, "input[1].content"),
    item({"role": "user"}),
    item({"type": "message", "content": "x"}),
    item({"type": 5}, "input[1].type"),
    item({"type": "computer_call"}, "input[1].type", "unsupported"),
    item({}, "input"),
    item({"role": "user", "content": [IMAGE]}, "input[1].content", "unsupported"),
    item({"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}, "input[1].content", "unsupported"),
    item({"type": "function_call", "call_id": "c", "name": "f"}),
    item({"type": "function_call", "call_id": "c", "name": "f", "arguments": {}}, "input[1].arguments"),
    item({**CALL, "arguments": "[1]"}, "input"),
    item({"type": "function_call_output", "call_id": "c"}),
    item({"type": "function_call_output", "call_id": 5, "output": "x"}, "input[1].call_id"),
    item({"type": "function_call_output", "call_id": "c", "output": [IMAGE]}, "input[1].output", "unsupported"),
    item({"type": "reasoning", "summary": 5}, "input[1].summary"),
    item({**USER, "id": "x" * 2000}, "input[1].id"),
    bad({"input": [{"type": "item_reference", "id": "nope"}]}, "input[0].id", "not_found", 404),
    bad({"previous_response_id": "resp_nope"}, reason="not_found", status=404),
    *(bad({"previous_response_id": value}) for value in (5, "x" * 2000)),
    *(bad({"max_output_tokens": value}) for value in (0, -1, "5", 1.5, True)),
    bad({"max_output_tokens": 2**40}, reason="invalid_value"),
    *(bad({"temperature": value}) for value in (-1, 3, "hot", True)),
    *(bad({"top_p": value}) for value in (0, 2, "x")),
    *(bad({"top_logprobs": value}) for value in (-1, "1", True, 10**6)),
    *(bad({"include": value}) for value in ("x", ["x"], ["message.output_text.logprobs"] * 17)),
    *(bad({"metadata": value}) for value in ("x", {str(n): "x" for n in range(17)})),
    *(bad({"metadata": {"a": value}}, "metadata.a") for value in (5, "x" * 513)),
    *(bad({name: "yes"}) for name in ("store", "background", "stream", "parallel_tool_calls")),
    bad({"background": True, "store": False}),
    bad({"instructions": 5}),
    bad({"truncation": "some"}),
    bad({"reasoning": {"effort": "lots"}}, "reasoning.effort"),
    bad({"n": 2}, reason="unsupported"),
    *(bad({name: True}, reason="unsupported") for name in ("return_token_ids",)),
    bad({"response_format": {"type": "json_object"}}, reason="unsupported"),
    *(bad({name: {"id": "x"}}, reason="unsupported") for name in ("conversation", "prompt", "moderation")),
    bad({"tools": [{"type": "web_search"}]}, "tools[0].type", "unsupported"),
    bad({"tools": [{"type": "function"}]}, "tools[0].name"),
    bad({"tools": [FUNCTION] * 129}),
    bad({"tools": [FUNCTION]}, "tool_choice", "unsupported"),
    bad({"tool_choice": "sometimes"}, "tool_choice.type"),
    bad({"tool_choice": {"type": "mcp"}}, reason="unsupported"),
    bad({"tool_choice": {"type": "function"}}),
    bad({"tool_choice": {"type": "function", "name": "nope"}, "tools": [FUNCTION]}),
    bad({"tool_choice": "required"}),
    bad({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [FUNCTION]}}),
    bad({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    bad({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format"),
    bad({"text": {"format": LOOP}}, "text.format", "unsupported"),
    bad({**JSON, "structured_outputs": {"regex": "a"}}, "text.format"),
    bad({**JSON, "tools": [FUNCTION], "tool_choice": "required"}, "text.format"),
]


async def post_all(app: Served) -> list[httpx.Response]:
    return [await app.post(PATH, {**HI, **fields}) for fields, *_ in ROWS]


def test_bodies_that_do_not_fit_are_refused() -> None:
    engine = saying("Hi")

    async def scenario() -> list[httpx.Response]:
        async with served(engine) as app:
            return await post_all(app)

    for (fields, status, reason, param), reply in zip(ROWS, asyncio.run(scenario()), strict=True):
        error = reply.json()["error"]
        shown = str(fields)[:200]
        assert (shown, reply.status_code, error["reason"], error["param"]) == (shown, status, reason, param)
        assert error["code"] == status
        assert len(reply.content) < 4096
    assert engine.added == []


def test_a_long_conversation_is_looked_through_quickly() -> None:
    async def scenario() -> tuple[int, float]:
        async with served(saying("Hi")) as app:
            body = {**HI, "input": [{"role": "user", "content": "x"}] * 4096}
            longest, last = 0.0, time.monotonic()

            async def watch() -> None:
                nonlocal longest, last
                while True:
                    last = time.monotonic()
                    await asyncio.sleep(0.001)
                    longest = max(longest, time.monotonic() - last)

            watcher = asyncio.ensure_future(watch())
            reply = await app.post(PATH, body)
            watcher.cancel()
            return reply.status_code, longest

    status, longest = asyncio.run(scenario())
    assert status == 400
    assert longest < 1.0


NOT_FOUND = [("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items"), ("GET", "?stream=true")]


@pytest.mark.parametrize("accounts", [("a", "b"), ()])
def test_another_keys_response_is_not_there(accounts: tuple[str, ...]) -> None:
    server = ServerConfig(api_keys=("one", "two"), api_key_names=accounts)

    async def scenario() -> list[int]:
        async with served(saying("Hi"), server) as app:
            mine, other = {"authorization": "Bearer one"}, {"authorization": "Bearer two"}
            ids = [
                (await app.post(PATH, {**HI, "background": is_background}, **mine)).json()["id"]
                for is_background in (False, True)
            ]
            statuses = [
                (await app.client.request(method, f"{PATH}/{id_}{rest}", headers=other)).status_code
                for id_ in ids
                for method, rest in NOT_FOUND
            ]
            statuses.append((await app.post(PATH, {**HI, "previous_response_id": ids[0]}, **other)).status_code)
            kept = (await app.client.get(f"{PATH}/{ids[0]}", headers=mine)).json()
            item = {"type": "item_reference", "id": kept["output"][0]["id"]}
            statuses.append((await app.post(PATH, {**HI, "input": [item]}, **other)).status_code)
            return statuses

    assert set(asyncio.run(scenario())) == {404}


def test_keys_that_share_the_last_account_are_told_apart() -> None:
    keys = tuple(f"key{number}" for number in range(53))

    async def scenario() -> list[int]:
        async with served(saying("Hi"), ServerConfig(api_keys=keys)) as app:
            id_ = (await app.post(PATH, HI, authorization="Bearer key51")).json()["id"]
            return [
                (await app.client.get(f"{PATH}/{id_}", headers={"authorization": f"Bearer {key}"})).status_code
                for key in ("key51", "key52")
            ]

    assert asyncio.run(scenario()) == [200, 404]


@pytest.mark.parametrize(("method", "rest"), NOT_FOUND)
def test_an_unknown_id_is_not_found(method: str, rest: str) -> None:
    async def scenario() -> httpx.Response:
        async with served(saying("Hi")) as app:
            return await app.client.request(method, f"{PATH}/resp_{'x' * 500}{rest}")

    reply = asyncio.run(scenario())
    assert (reply.status_code, reply.json()["error"]["reason"]) == (404, "not_found")
    assert "x" * 65 not in reply.text


@pytest.mark.parametrize(
    "query", [{"limit": "0"}, {"limit": "101"}, {"limit": "x"}, {"order": "up"}, {"after": "nope"}]
)
def test_a_page_that_is_none_is_refused(query: dict[str, str]) -> None:
    async def scenario() -> httpx.Response:
        async with served(saying("Hi")) as app:
            id_ = (await app.post(PATH, HI)).json()["id"]
            return await app.client.get(f"{PATH}/{id_}/input_items", params=query)

    reply = asyncio.run(scenario())
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, *query)


def test_what_cannot_be_stored_is_refused_before_it_runs() -> None:
    server = ServerConfig(limits=Limits(max_stored_response_bytes=4000))
    engine = saying("Hi")

    async def scenario() -> list[int]:
        async with served(engine, server) as app:
            body = {**HI, "input": "x " * 1500}
            return [(await app.post(PATH, fields)).status_code for fields in (body, {**body, "store": False})]

    assert asyncio.run(scenario()) == [413, 200]
    assert len(engine.added) == 1


def test_a_failure_in_the_engine_is_told_and_ends_the_stream() -> None:
    engine = FakeEngine(lambda request: [30, ERROR_TOKEN])

    async def scenario() -> tuple[httpx.Response, list[dict[str, Any]]]:
        async with served(engine) as app:
            whole = await app.post(PATH, HI)
            events = events_of((await app.post(PATH, {**HI, "stream": True})).text)
            kept = await app.client.get(f"{PATH}/{events[0]['response']['id']}")
            assert kept.json() == events[-2]["response"]
            return whole, events

    whole, events = asyncio.run(scenario())
    assert whole.status_code == 500
    failed, error = events[-2:]
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    assert failed["response"]["output"][0]["status"] == "incomplete"
    assert (error["type"], error["error"]["reason"], error["error"]["code"]) == ("error", "internal_error", 500)
    assert error["error"] == whole.json()["error"]


def test_a_client_that_goes_ends_its_response() -> None:
    engine = saying("Hi")
    engine.go.clear()

    async def scenario() -> tuple[list[str], int]:
        async with served(engine) as app:
            for is_streamed in (True, False):
                asking = asyncio.ensure_future(app.post(PATH, {**HI, "stream": is_streamed}))
                while engine.num_running == 0:
                    await asyncio.sleep(0.01)
                asking.cancel()
                await asyncio.wait({asking})
                await asyncio.sleep(0.01)
            return engine.aborted, app.api.num_open

    aborted, num_open = asyncio.run(scenario())
    assert (len(aborted), num_open) == (2, 0)


def test_turns_before_count_too() -> None:
    async def scenario() -> list[int]:
        async with served(saying("Hi")) as app:
            body = {**HI, "truncation": "auto"}
            first = await app.post(PATH, {**body, "input": [USER] * 4000})
            again = {**body, "previous_response_id": first.json()["id"]}
            replies = [await app.post(PATH, {**again, "input": [USER] * num}) for num in (96, 95)]
            return [first.status_code, *(reply.status_code for reply in replies)]

    assert asyncio.run(scenario()) == [200, 400, 200]


def test_a_dead_engine_ends_the_stream() -> None:
    engine = saying("Hi")
    engine.go.clear()

    async def scenario() -> list[dict[str, Any]]:
        async with served(engine) as app:
            streamed = asyncio.ensure_future(app.post(PATH, {**HI, "stream": True}))
            while not engine.added:
                await asyncio.sleep(0.01)
            engine.die()
            return events_of((await streamed).text)

    assert asyncio.run(scenario())[-1]["error"]["reason"] == "engine_dead"


def test_it_is_described() -> None:
    async def scenario() -> dict[str, Any]:
        async with served(saying("Hi")) as app:
            return dict(app.app.openapi())

    document = asyncio.run(scenario())
    operations = {path: set(methods) for path, methods in document["paths"].items() if path.startswith(PATH)}
    assert operations == {
        PATH: {"post"},
        PATH + "/input_tokens": {"post"},
        PATH + "/compact": {"post"},
        PATH + "/{response_id}": {"get", "delete"},
        PATH + "/{response_id}/cancel": {"post"},
        PATH + "/{response_id}/input_items": {"get"},
    }
    listing = document["paths"][PATH + "/{response_id}/input_items"]["get"]["parameters"]
    assert [parameter["name"] for parameter in listing] == ["response_id", "limit", "order", "after"]
    body = document["components"]["schemas"]["ResponsesRequest"]
    assert "required" not in body
    assert body["properties"]["input"]["anyOf"][0] == {"type": "string"}
    assert MODEL not in str(body)

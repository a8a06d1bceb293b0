"""Tools in chats: what the engine is asked for, and how calls come back, whole and in a stream."""

import asyncio
import json
from typing import Any

import pytest
from fake_engine import FakeEngine
from http_app import served, tokenizer

from vllm_obs.engine.messages import EngineCoreRequest
from vllm_obs.engine.structured.params import StructuredOutputsParams
from vllm_obs.server.config import ServerConfig

PATH = "/v1/chat/completions"
CITY = {"type": "object", "properties": {"city": {"$ref": "#/$defs/City"}}, "$defs": {"City": {"type": "string"}}}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}
PING = {"type": "function", "function": {"name": "ping"}}
NAMED = {"type": "function", "function": {"name": "get_weather"}}
ASK = {"messages": [{"role": "user", "content": "Weather?"}], "tools": [WEATHER, PING], "max_tokens": 200}
HERMES = ServerConfig(enable_auto_tool_choice=True, tool_call_parser="hermes")
CALLS = (
    'Look:\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "ping"}\n</tool_call>'
)
REQUIRED = '[{"name": "ping", "parameters": {}}, {"name": "get_weather", "parameters": {"city": "Rome"}}]'


async def ask(text: str, fields: dict[str, Any], server: ServerConfig) -> tuple[dict[str, Any], EngineCoreRequest]:
    """The choice of the reply, whose text is this, and what the engine was given."""
    engine = FakeEngine(lambda request: [*tokenizer().encode(text, add_special_tokens=False), 2])
    async with served(engine, server) as app:
        reply = await app.post(PATH, {**ASK, **fields})
        assert reply.status_code == 200, reply.text
        if not fields.get("stream"):
            return reply.json()["choices"][0], engine.added[0]
        lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if line]
        assert lines.pop() == "[DONE]"
        return joined([json.loads(line)["choices"][0] for line in lines]), engine.added[0]


def joined(choices: list[dict[str, Any]]) -> dict[str, Any]:
    """The choice that a stream's chunks come to, in the shape of a whole reply."""
    content, calls = "", list[dict[str, Any]]()
    for choice in choices:
        content += choice["delta"].get("content") or ""
        for part in choice["delta"].get("tool_calls", ()):
            if part["index"] == len(calls):
                calls.append({"id": part["id"], "type": part["type"], "function": {"name": "", "arguments": ""}})
            for name, text in part["function"].items():
                calls[part["index"]]["function"][name] += text
    message = {"content": content or None, "tool_calls": calls}
    return {"message": message, "finish_reason": choices[-1]["finish_reason"]}


def told(choice: dict[str, Any]) -> Any:
    """Content, calls without their ids, and the ending."""
    message = choice["message"]
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())]
    ids = [call["id"] for call in message.get("tool_calls", ())]
    assert len({*ids, ""}) == len(ids) + 1
    return message["content"], calls, choice["finish_reason"]


PARIS, ROME = ("get_weather", '{"city": "Paris"}'), ("get_weather", '{"city": "Rome"}')


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("text", "fields", "wanted"),
    [
        (CALLS, {}, ("Look:", [PARIS, ("ping", "{}")], "tool_calls")),
        (CALLS, {"tool_choice": "auto"}, ("Look:", [PARIS, ("ping", "{}")], "tool_calls")),
        (CALLS, {"tool_choice": "none"}, (CALLS, [], "stop")),
        ("No need.", {}, ("No need.", [], "stop")),
        (REQUIRED, {"tool_choice": "required"}, (None, [("ping", "{}"), ROME], "tool_calls")),
        ('{"city": "Rome"}', {"tool_choice": NAMED}, (None, [ROME], "stop")),
    ],
)
def test_calls_come_back_alike_whole_and_in_a_stream(
    stream: bool, text: str, fields: dict[str, Any], wanted: Any
) -> None:
    choice, _ = asyncio.run(ask(text, {**fields, "stream": stream}, HERMES))
    assert told(choice) == wanted


@pytest.mark.parametrize("stream", [False, True])
def test_a_function_without_a_name_behind_a_call_is_content(stream: bool) -> None:
    text = "<tool_call>\n<function=ping>\n</function>\n<function=>\n</function>\n</tool_call>"
    coder = ServerConfig(enable_auto_tool_choice=True, tool_call_parser="qwen3_coder")
    choice, _ = asyncio.run(ask(text, {"stream": stream}, coder))
    left = "\n<function=>\n</function>\n</tool_call>"
    assert told(choice) == (left, [("ping", "{}")], "tool_calls")


def test_a_call_that_is_cut_off_ends_by_its_length() -> None:
    engine = FakeEngine(lambda request: tokenizer().encode(CALLS, add_special_tokens=False))

    async def scenario() -> dict[str, Any]:
        async with served(engine, HERMES) as app:
            reply = await app.post(PATH, {**ASK, "max_tokens": 24})
            return dict(reply.json()["choices"][0])

    choice = asyncio.run(scenario())
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "get_weather"


@pytest.mark.parametrize(
    ("fields", "schema"),
    [
        ({"tool_choice": NAMED}, CITY),
        (
            {"tool_choice": "required", "parallel_tool_calls": False},
            {
                "type": "array",
                "minItems": 1,
                "items": {
                    "anyOf": [
                        {
                            "type": "object",
                            "properties": {
                                "name": {"const": "get_weather"},
                                "parameters": {
                                    "type": "object",
                                    "properties": {"city": {"$ref": "#/$defs/tool_0_City"}},
                                },
                            },
                            "required": ["name", "parameters"],
                            "additionalProperties": False,
                        },
                        {
                            "type": "object",
                            "properties": {
                                "name": {"const": "ping"},
                                "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
                            },
                            "required": ["name", "parameters"],
                            "additionalProperties": False,
                        },
                    ]
                },
                "maxItems": 1,
                "$defs": {"tool_0_City": {"type": "string"}},
            },
        ),
    ],
)
def test_a_forced_call_is_a_grammar(fields: dict[str, Any], schema: dict[str, Any]) -> None:
    _, sequence = asyncio.run(ask("{}", fields, ServerConfig()))
    assert sequence.sampling.grammar == StructuredOutputsParams(json=schema).grammar_text()


def allowed(mode: Any, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}}


@pytest.mark.parametrize(
    ("fields", "same"),
    [
        (allowed("auto", "ping"), {"tools": [PING]}),
        (allowed("auto", "ping", "get_weather"), {}),
        (allowed("required", "ping"), {"tools": [PING], "tool_choice": "required"}),
    ],
)
def test_allowed_tools_are_as_if_no_others_were_there(fields: dict[str, Any], same: dict[str, Any]) -> None:
    choice, sequence = asyncio.run(ask(REQUIRED, fields, HERMES))
    wanted, alike = asyncio.run(ask(REQUIRED, same, HERMES))
    assert told(choice) == told(wanted)
    assert sequence.prompt_token_ids.tolist() == alike.prompt_token_ids.tolist()
    assert sequence.sampling.grammar == alike.sampling.grammar


@pytest.mark.parametrize(
    ("fields", "param", "reason"),
    [
        (allowed("auto"), "tool_choice.allowed_tools.tools", "invalid_value"),
        (allowed("none", "ping"), "tool_choice.allowed_tools.mode", "invalid_value"),
        (allowed("required", "ping", "pong"), "tool_choice", "invalid_value"),
        ({**allowed("required", "ping"), "tools": None}, "tool_choice", "invalid_value"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools", "invalid_value"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type", "unsupported"),
        ({"tool_choice": "auto"}, "tool_choice", "unsupported"),
        ({"tool_choice": {"type": "function", "function": {"name": "nope"}}}, "tool_choice", "invalid_value"),
        ({"tool_choice": "sometimes"}, "tool_choice", "invalid_value"),
        ({"tool_choice": NAMED, "tools": None}, "tool_choice", "invalid_value"),
        ({"tool_choice": "required", "tools": []}, "tool_choice", "invalid_value"),
        (
            {"tool_choice": "required", "response_format": {"type": "json_object"}},
            "response_format",
            "invalid_value",
        ),
        ({"tool_choice": "none", "tools": [{"type": "function"}]}, "tools[0].function", "invalid_value"),
        (
            {
                "tool_choice": "required",
                "tools": [{"function": {"name": "f", "parameters": {"$ref": "#/$defs/a", "$defs": [1]}}}],
            },
            "tools",
            "unsupported",
        ),
        ({"tool_choice": "none", "tools": [PING] * 129}, "tools", "invalid_value"),
        (
            {"tool_choice": "required", "tools": [{"function": {"name": "f", "parameters": {"pattern": "["}}}]},
            "tools",
            "unsupported",
        ),
    ],
)
def test_tools_that_do_not_fit_are_refused(fields: dict[str, Any], param: str, reason: str) -> None:
    async def scenario() -> dict[str, Any]:
        async with served(FakeEngine(lambda request: [2])) as app:
            reply = await app.post(PATH, {**ASK, **fields})
            assert reply.status_code == 400
            return dict(reply.json()["error"])

    error = asyncio.run(scenario())
    assert (error["param"], error["reason"]) == (param, reason)


@pytest.mark.parametrize("content", [{"content": None}, {}, {"content": ""}])
@pytest.mark.parametrize("arguments", ['{"city": "Paris"}', "null", "{}", ""])
def test_calls_can_be_sent_back(content: dict[str, Any], arguments: str) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    turn = [
        {"role": "assistant", "tool_calls": [call], **content},
        {"role": "tool", "tool_call_id": "call_1", "content": "18 C"},
    ]
    _, alone = asyncio.run(ask("Hi", {"tools": None}, ServerConfig()))
    _, sequence = asyncio.run(ask("Hi", {"messages": [*ASK["messages"], *turn], "tools": None}, ServerConfig()))  # type: ignore[misc]
    assert len(sequence.prompt_token_ids) > len(alone.prompt_token_ids)


@pytest.mark.parametrize(
    "fields", [{"tool_choice": NAMED}, {"tools": None, "response_format": {"type": "json_object"}}]
)
def test_a_grammar_leaves_no_room_for_reasoning(fields: dict[str, Any]) -> None:
    server = ServerConfig(reasoning_parser="deepseek_r1")
    message = asyncio.run(ask('{"city": "Rome"}', fields, server))[0]["message"]
    assert message["reasoning"] is None
    assert message["content"] or message["tool_calls"]


def test_reasoning_is_a_field_of_its_own() -> None:
    server = ServerConfig(reasoning_parser="qwen3")
    text = "<think>Hm.</think>Yes"
    choice, _ = asyncio.run(ask(text, {"tools": None}, server))
    assert (choice["message"]["reasoning"], choice["message"]["content"]) == ("Hm.", "Yes")
    choice, _ = asyncio.run(ask(text, {"tools": None, "include_reasoning": False}, server))
    assert (choice["message"]["reasoning"], choice["message"]["content"]) == (None, "Yes")

"""/v1/messages: the conversation that the model gets, and the message that comes back."""

import asyncio
from typing import Any

import pytest
from fake_engine import FakeEngine
from http_app import MODEL, served, tokenizer

from vllm_obs.engine.messages import EngineCoreRequest
from vllm_obs.engine.structured.params import StructuredOutputsParams
from vllm_obs.server.anthropic_chat import as_chat
from vllm_obs.server.config import ServerConfig
from vllm_obs.server.schema_messages import MessagesRequest
from vllm_obs.server.tool_calls.forced_schema import CallableTool, required_schema
from vllm_obs.telemetry.records import HttpRequestEnded, RequestSubmitted

PATH = "/v1/messages"
HI = {"role": "user", "content": "hi"}
ASK: dict[str, Any] = {"model": MODEL, "max_tokens": 200, "messages": [HI]}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = [
    {"name": "get_weather", "description": "Weather", "input_schema": CITY},
    {"name": "ping", "input_schema": {}},
]
HERMES = ServerConfig(enable_auto_tool_choice=True, tool_call_parser="hermes")
CALLS = (
    'Look:\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "ping"}\n</tool_call>'
)
REQUIRED = '[{"name": "ping", "parameters": {}}]'
PARIS = {"type": "tool_use", "name": "get_weather", "input": {"city": "Paris"}, "caller": {"type": "direct"}}
PING = {"type": "tool_use", "name": "ping", "input": {}, "caller": {"type": "direct"}}


def text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text, "citations": None}


async def ask(
    text: str, fields: dict[str, Any], server: ServerConfig | None = None
) -> tuple[dict[str, Any], EngineCoreRequest]:
    """The reply to a body with these fields, where the model says this text; and what the engine was given."""
    engine = FakeEngine(lambda request: [*tokenizer().encode(text, add_special_tokens=False), 2])
    async with served(engine, server) as app:
        reply = await app.post(PATH, {**ASK, **fields})
        assert reply.status_code == 200, reply.text
        assert reply.headers["request-id"] == reply.headers["x-request-id"]
        return reply.json(), engine.added[0]


def told(message: dict[str, Any]) -> Any:
    """Content, calls without their ids, and the ending."""
    content = [{name: value for name, value in block.items() if name != "id"} for block in message["content"]]
    ids = [block["id"] for block in message["content"] if "id" in block]
    assert len({*ids}) == len(ids)
    assert all(id_.startswith("toolu_") for id_ in ids)
    return content, message["stop_reason"], message["stop_sequence"]


def prompt_of(**fields: Any) -> str:
    """The text that the model is given."""
    _, sequence = asyncio.run(ask("x", fields))
    return tokenizer().decode([int(token) for token in sequence.prompt_token_ids], skip_special_tokens=False)


def messages_of(*messages: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    """The messages that the chat template is given."""
    request = MessagesRequest.model_validate({**ASK, "messages": list(messages), **fields})
    return [message.for_template() for message in as_chat(request).messages]


def test_a_reply_is_a_whole_message() -> None:
    reply, _ = asyncio.run(ask("Hello there", {}))
    assert reply == {
        "id": reply["id"],
        "type": "message",
        "role": "assistant",
        "content": [text_block("Hello there")],
        "model": MODEL,
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "stop_details": None,
        "container": None,
        "usage": {
            "input_tokens": 31,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 3,
            "output_tokens_details": None,
            "server_tool_use": None,
            "cache_creation": None,
            "inference_geo": None,
            "service_tier": None,
        },
    }
    assert reply["id"].startswith("msg_")


def test_the_prompt_is_that_of_the_same_chat() -> None:
    async def scenario() -> None:
        engine = FakeEngine(lambda request: [2])
        async with served(engine) as app:
            await app.post(PATH, {**ASK, "system": [{"type": "text", "text": "Be short."}]})
            chat = [{"role": "system", "content": "Be short."}, HI]
            await app.post("/v1/chat/completions", {"messages": chat, "max_tokens": 200})
        first, second = engine.added
        assert list(first.prompt_token_ids) == list(second.prompt_token_ids)
        assert first.sampling._replace(seed=0) == second.sampling._replace(seed=0)

    asyncio.run(scenario())


def test_sampling_fields_reach_the_engine() -> None:
    fields = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "max_tokens": 7,
        "metadata": {"user_id": "u"},
        "service_tier": "auto",
        "cache_control": {"type": "ephemeral"},
        "context_management": {"edits": []},
        "output_config": {"effort": "low"},
    }
    _, sequence = asyncio.run(ask("x", fields))
    sampling = sequence.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.max_tokens) == (0.5, 0.9, 40, 7)


@pytest.mark.parametrize(
    ("text", "fields", "wanted"),
    [
        ("One two.", {"max_tokens": 1}, ([text_block("One")], "max_tokens", None)),
        ("One two. Six", {"stop_sequences": [" two", "x"]}, ([text_block("One")], "stop_sequence", " two")),
        ("", {}, ([text_block("")], "end_turn", None)),
        (CALLS, {"tools": TOOLS}, ([text_block("Look:"), PARIS, PING], "tool_use", None)),
        (CALLS, {"tools": TOOLS, "tool_choice": {"type": "none"}}, ([text_block(CALLS)], "end_turn", None)),
        (REQUIRED, {"tools": TOOLS, "tool_choice": {"type": "any"}}, ([PING], "tool_use", None)),
        (
            '{"city": "Paris"}',
            {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "get_weather"}},
            ([PARIS], "tool_use", None),
        ),
        (
            '{"city": "Paris", "n": 12345678}',
            {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "get_weather"}, "max_tokens": 8},
            ([{**PARIS, "input": {}}], "max_tokens", None),
        ),
    ],
)
def test_a_message_says_how_it_ended(text: str, fields: dict[str, Any], wanted: Any) -> None:
    reply, _ = asyncio.run(ask(text, fields, HERMES))
    assert told(reply) == wanted


@pytest.mark.parametrize(
    ("thinking", "wanted"),
    [
        ({"type": "enabled", "budget_tokens": 1024}, ["Hm.", "Yes"]),
        ({"type": "adaptive", "display": "summarized"}, ["Hm.", "Yes"]),
        ({"type": "enabled", "display": "omitted"}, ["Yes"]),
        ({"type": "disabled"}, ["Yes"]),
        (None, ["Yes"]),
    ],
)
def test_thoughts_are_shown_to_who_asks_for_them(thinking: Any, wanted: list[str]) -> None:
    server = ServerConfig(reasoning_parser="qwen3")
    reply, _ = asyncio.run(ask("<think>Hm.</think>Yes", {"thinking": thinking}, server))
    assert [block[block["type"]] for block in reply["content"]] == wanted
    if len(wanted) == 2:
        assert reply["content"][0] == {"type": "thinking", "thinking": "Hm.", "signature": ""}


def test_whether_to_think_is_told_to_the_template_and_can_be_overruled() -> None:
    def kwargs(**fields: Any) -> dict[str, Any]:
        return as_chat(MessagesRequest.model_validate({**ASK, **fields})).chat_template_kwargs

    assert kwargs() == {}
    assert kwargs(thinking={"type": "disabled"}) == {"enable_thinking": False}
    assert kwargs(thinking={"type": "enabled"}, chat_template_kwargs={"a": 1}) == {"enable_thinking": True, "a": 1}
    assert kwargs(thinking={"type": "enabled"}, chat_template_kwargs={"enable_thinking": False}) == {
        "enable_thinking": False
    }


def test_the_results_of_tools_are_messages_of_their_own() -> None:
    call = {"type": "tool_use", "id": "toolu_1", "name": "ping", "input": {"x": [1, None]}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1"}
    messages = messages_of(
        HI,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "Wait."},
                {**call, "cache_control": {"type": "ephemeral"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {**result, "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                {**result, "content": "gone", "is_error": True},
                {**result, "content": None},
                {"type": "text", "text": "And now?"},
            ],
        },
        system="Be short.",
    )
    function = {"name": "ping", "arguments": {"x": [1, None]}}
    assert messages == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "Wait.",
            "tool_calls": [{"id": "toolu_1", "type": "function", "function": function}],
            "reasoning": "Hm.",
            "reasoning_content": "Hm.",
        },
        {"role": "tool", "tool_call_id": "toolu_1", "content": "a\nb"},
        {"role": "tool", "tool_call_id": "toolu_1", "content": "Error: gone"},
        {"role": "tool", "tool_call_id": "toolu_1", "content": ""},
        {"role": "user", "content": "And now?"},
    ]


def test_messages_of_one_role_in_a_row_are_one_turn() -> None:
    again = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    assert messages_of(HI, again, {"role": "system", "content": "Now."}, HI) == [
        {"role": "user", "content": "hi\na\nb"},
        {"role": "system", "content": "Now."},
        {"role": "user", "content": "hi"},
    ]


def test_a_last_message_of_the_assistant_is_the_beginning_of_the_reply() -> None:
    prompt = prompt_of(messages=[HI, {"role": "assistant", "content": "The capital"}])
    assert prompt.endswith("<|im_start|>assistant\nThe capital")


@pytest.mark.parametrize(
    "content", ["", [], [{"type": "text", "text": ""}], [{"type": "thinking", "thinking": "x"}]]
)
def test_a_last_message_without_text_begins_nothing(content: Any) -> None:
    assert prompt_of(messages=[HI, {"role": "assistant", "content": content}]) == prompt_of()


def test_tools_are_told_to_the_template_as_functions() -> None:
    chat = as_chat(MessagesRequest.model_validate({**ASK, "tools": TOOLS}))
    assert chat.template_options()["tools"] == [
        {"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": CITY}},
        {"type": "function", "function": {"name": "ping", "parameters": {}}},
    ]


@pytest.mark.parametrize(
    ("fields", "schema"),
    [
        ({"output_config": {"format": {"type": "json_schema", "schema": CITY}}}, CITY),
        ({"output_format": {"type": "json_schema", "schema": CITY}}, CITY),
        ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "get_weather"}}, CITY),
    ],
)
def test_a_form_and_a_forced_tool_are_grammars(fields: dict[str, Any], schema: dict[str, Any]) -> None:
    _, sequence = asyncio.run(ask("{}", fields))
    assert sequence.sampling.grammar == StructuredOutputsParams(json=schema).grammar_text()


@pytest.mark.parametrize("is_single", [True, False])
def test_one_tool_at_a_time_is_part_of_the_grammar(is_single: bool) -> None:
    choice = {"type": "any", "disable_parallel_tool_use": is_single}
    _, sequence = asyncio.run(ask(REQUIRED, {"tools": TOOLS, "tool_choice": choice}))
    schema = required_schema([CallableTool("get_weather", CITY), CallableTool("ping", {})], is_single)
    assert sequence.sampling.grammar == StructuredOutputsParams(json=schema).grammar_text()


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"system": "Be short."},
        {"messages": [HI, {"role": "assistant", "content": "The"}]},
        {"tools": TOOLS},
    ],
)
def test_counted_tokens_are_those_of_the_prompt(fields: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with served(FakeEngine(lambda request: [2]), HERMES) as app:
            reply = await app.post(PATH, {**ASK, **fields})
            body = {name: value for name, value in {**ASK, **fields}.items() if name != "max_tokens"}
            count = await app.post(f"{PATH}/count_tokens", body)
            assert count.json() == {"input_tokens": reply.json()["usage"]["input_tokens"]}

    asyncio.run(scenario())


def test_what_is_recorded_has_the_templates_of_the_routes() -> None:
    async def scenario() -> None:
        async with served(FakeEngine(lambda request: [2])) as app:
            await app.client.post(f"{PATH}?beta=true", json=ASK, headers={"anthropic-version": "2023-06-01"})
            await app.post(f"{PATH}/count_tokens", {"model": MODEL, "messages": [HI]})
            ended = app.recorder.of(HttpRequestEnded)
            assert [(record.handler, record.status) for record in ended] == [
                (PATH, 200),
                (f"{PATH}/count_tokens", 200),
            ]
            assert [record.operation for record in app.recorder.of(RequestSubmitted)] == ["chat"]

    asyncio.run(scenario())


def test_timing_is_there_where_the_server_tells_it() -> None:
    reply, _ = asyncio.run(ask("Hi", {}, ServerConfig(enable_per_request_metrics=True)))
    assert reply["metrics"]["stages"]["receive"] >= 0

"""What of a body reaches the chat template: each field that makes a prompt, on every route with messages."""

from dataclasses import replace
from typing import Any

import pytest
from fake_engine import FakeEngine
from http_app import MODEL, model_config, served, tokenizer
from in_loop import in_loop

from vllm_obs.engine.config import VllmConfig

CHAT, RENDER, BATCH = "/v1/chat/completions", "/v1/chat/completions/render", "/v1/chat/completions/batch"
TOKENIZE, RESPONSES, MESSAGES = "/tokenize", "/v1/responses", "/v1/messages"
HI = {"role": "user", "content": "Hi"}
ASK = {"messages": [HI]}
KWARGS = {"chat_template_kwargs": {"reasoning_effort": "high"}}
PING = {"type": "function", "function": {"name": "ping"}}
PONG = {"type": "function", "function": {"name": "pong"}}
FIELDS = (
    "{{ reasoning_effort | default('-') }}/{{ enable_thinking | default('-') }}/{{ verbosity | default('-') }}"
    "/{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}"
)
TURNS = "{% for m in messages %}{{ m.role }}:{{ m.content }}:{{ m.reasoning_content | default('-') }};{% endfor %}"


def with_template(source: str) -> VllmConfig:
    config = model_config()
    return replace(config, model=replace(config.model, chat_template=source))


async def prompt_of(path: str, body: dict[str, Any], template: str) -> str:
    """The text that the engine, or the client, got."""
    engine = FakeEngine(lambda request: [30])
    async with served(engine, config=with_template(template)) as app:
        reply = await app.post(path, {"model": MODEL, **body})
        assert reply.status_code == 200, reply.text
        ids = engine.added[0].prompt_token_ids.tolist() if engine.added else reply.json()["tokens"]
        return tokenizer().decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize(
    ("path", "body", "prompt"),
    [
        (CHAT, ASK, "-/-/-/"),
        (CHAT, {**ASK, "reasoning_effort": "high"}, "high/True/-/"),
        (CHAT, {**ASK, "reasoning_effort": "none"}, "none/False/-/"),
        (
            CHAT,
            {**ASK, "reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}},
            "low/False/-/",
        ),
        (CHAT, {**ASK, "verbosity": "low"}, "-/-/low/"),
        (TOKENIZE, {**ASK, "reasoning_effort": "high", "tools": [PING]}, "high/True/-/ping "),
        (
            TOKENIZE,
            {
                **ASK,
                "tools": [PING, PONG],
                "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [PONG]}},
            },
            "-/-/-/pong ",
        ),
        (
            RESPONSES,
            {"input": "Hi", "reasoning": {"effort": "minimal"}, "text": {"verbosity": "high"}},
            "minimal/True/high/",
        ),
        (MESSAGES, {**ASK, "max_tokens": 1, "output_config": {"effort": "medium"}}, "medium/-/-/"),
        (CHAT, {**ASK, "reasoning_effort": "low", **KWARGS}, "low/True/-/"),
        (TOKENIZE, {**ASK, "reasoning_effort": "low", **KWARGS}, "low/True/-/"),
        (RESPONSES, {"input": "Hi", "reasoning": {"effort": "low"}, **KWARGS}, "low/True/-/"),
        (MESSAGES, {**ASK, "max_tokens": 1, "output_config": {"effort": "low"}, **KWARGS}, "low/-/-/"),
        (MESSAGES, {**ASK, "max_tokens": 1, **KWARGS}, "high/-/-/"),
        (
            MESSAGES,
            {
                **ASK,
                "max_tokens": 1,
                "thinking": {"type": "adaptive"},
                "chat_template_kwargs": {"enable_thinking": False},
            },
            "-/False/-/",
        ),
    ],
)
@in_loop
async def test_what_a_body_says_reaches_the_template(path: str, body: dict[str, Any], prompt: str) -> None:
    assert await prompt_of(path, body, FIELDS) == prompt


@pytest.mark.parametrize(
    ("turn", "prompt"),
    [
        ({"content": "A", "reasoning": "T"}, "assistant:A:T;"),
        ({"content": "A", "reasoning_content": "T"}, "assistant:A:T;"),
        ({"content": "A", "reasoning": None, "reasoning_content": "T"}, "assistant:A:T;"),
        ({"content": "A", "reasoning": "T", "reasoning_content": "U"}, "assistant:A:T;"),
        ({"content": None, "refusal": "No."}, "assistant:No.:-;"),
        ({"content": "A", "refusal": None, "audio": None, "function_call": None}, "assistant:A:-;"),
    ],
)
@in_loop
async def test_what_an_assistant_said_reaches_the_template(turn: dict[str, Any], prompt: str) -> None:
    messages = [{"role": "assistant", **turn}, HI]
    assert await prompt_of(CHAT, {"messages": messages}, TURNS) == prompt + "user:Hi:-;"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {**ASK, "reasoning_effort": "huge"}, "reasoning_effort"),
        (CHAT, {**ASK, "verbosity": "huge"}, "verbosity"),
        (TOKENIZE, {**ASK, "tools": [PING] * 129}, "tools"),
        (CHAT, {"messages": [{"role": "assistant", "audio": {"id": "x"}}, HI]}, "messages[0].audio"),
        (
            CHAT,
            {"messages": [{"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}, HI]},
            "messages[0].function_call",
        ),
    ],
)
@in_loop
async def test_what_cannot_reach_it_is_refused_by_name(path: str, body: dict[str, Any], param: str) -> None:
    async with served(FakeEngine(lambda request: [30])) as app:
        reply = await app.post(path, body)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("stream", [False, True])
@in_loop
async def test_the_text_of_the_prompt_comes_back_where_it_is_asked_for(stream: bool) -> None:
    engine = FakeEngine(lambda request: [30, 2])
    async with served(engine, config=with_template("<|im_start|>{{ messages[0].content }}")) as app:
        reply = await app.post(CHAT, {**ASK, "return_prompt_text": True, "stream": stream})
        assert reply.text.count('"prompt_text":"<|im_start|>Hi"') == 1
        reply = await app.post(CHAT, {**ASK, "stream": stream})
        assert reply.text.count('"prompt_text":null') == 1
        reply = await app.post(BATCH, {"messages": [[HI]], "return_prompt_text": True})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "return_prompt_text")


@pytest.mark.parametrize(("text", "told"), [({"verbosity": "low"}, {"verbosity": "low"}), ({}, {})])
@in_loop
async def test_a_response_says_how_verbose_it_was_asked_to_be(text: dict[str, Any], told: dict[str, Any]) -> None:
    async with served(FakeEngine(lambda request: [30])) as app:
        reply = await app.post(RESPONSES, {"input": "Hi", "text": text})
        assert reply.json()["text"] == {"format": {"type": "text"}, **told}

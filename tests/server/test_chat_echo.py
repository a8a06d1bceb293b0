"""`echo` in chats: the last message's text stands before the answer, whole and in a stream alike."""

import json
from typing import Any

import pytest
from fake_engine import FakeEngine
from http_app import served, tokenizer
from in_loop import in_loop

from vllm_obs.server.config import ServerConfig

CHAT, BATCH = "/v1/chat/completions", "/v1/chat/completions/batch"
HI = {"role": "user", "content": "Hi"}
PARTS = [{"type": "text", "text": "One"}, {"type": "text", "text": "two"}]
BEGUN = {"role": "assistant", "content": "Once upon"}
GOES_ON = {"messages": [HI, BEGUN], "continue_final_message": True, "echo": True}
PING = {"type": "function", "function": {"name": "ping"}}
HERMES = ServerConfig(enable_auto_tool_choice=True, tool_call_parser="hermes")


async def ask(body: dict[str, Any], text: str = " a time", path: str = CHAT) -> list[dict[str, Any]]:
    """The choices of a reply, or of a stream put together; each answer is this text."""
    engine = FakeEngine(lambda request: [*tokenizer().encode(text, add_special_tokens=False), 2])
    async with served(engine, HERMES) as app:
        reply = await app.post(path, {"max_tokens": 50, **body})
        assert reply.status_code == 200, reply.text
        if not body.get("stream"):
            return list(reply.json()["choices"])
        lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if line]
        chunks = [json.loads(line)["choices"][0] for line in lines[:-1]]
    assert [chunk["delta"] for chunk in chunks if "role" in chunk["delta"]] == [
        {"role": "assistant", "content": ""}
    ] * body.get("n", 1)
    return [
        {"message": {"content": "".join(c["delta"].get("content", "") for c in chunks if c["index"] == index)}}
        for index in range(body.get("n", 1))
    ]


def contents(choices: list[dict[str, Any]]) -> list[str | None]:
    return [choice["message"]["content"] for choice in choices]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({}, ["Once upon a time"]),
        ({"echo": False}, [" a time"]),
        ({"n": 2, "temperature": 1.0}, ["Once upon a time"] * 2),
        ({"logprobs": True, "stream_options": {"include_usage": False}}, ["Once upon a time"]),
        ({"return_token_ids": True}, ["Once upon a time"]),
        ({"messages": [HI, {**BEGUN, "content": PARTS}]}, ["One\ntwo a time"]),
        ({"messages": [HI, BEGUN], "continue_final_message": False}, ["Once upon a time"]),
        ({"messages": [HI], "continue_final_message": False}, [" a time"]),
        ({"messages": [HI], "add_generation_prompt": False, "continue_final_message": False}, ["Hi a time"]),
    ],
)
@in_loop
async def test_an_answer_begins_with_what_it_goes_on_with(
    stream: bool, fields: dict[str, Any], wanted: list[str]
) -> None:
    if not stream:
        fields = {name: value for name, value in fields.items() if name != "stream_options"}
    assert contents(await ask({**GOES_ON, **fields, "stream": stream})) == wanted


@pytest.mark.parametrize("stream", [False, True])
@in_loop
async def test_calls_leave_the_echo_as_content(stream: bool) -> None:
    call = '<tool_call>{"name": "ping", "arguments": {}}</tool_call>'
    choices = await ask({**GOES_ON, "tools": [PING], "stream": stream}, call)
    assert contents(choices) == ["Once upon"]


@in_loop
async def test_a_batch_echoes_each_conversation() -> None:
    other = [HI, {"role": "assistant", "content": "Twice"}]
    body = {**GOES_ON, "messages": [[HI, BEGUN], other], "n": 2, "temperature": 1.0}
    choices = await ask(body, path=BATCH)
    assert contents(choices) == ["Once upon a time"] * 2 + ["Twice a time"] * 2

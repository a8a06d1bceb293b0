"""Where reasoning is told apart, the usage of a reply says how many tokens it has: the same on every API."""

import json
from dataclasses import replace
from typing import Any

import pytest
from fake_engine import FakeEngine
from http_app import MODEL, Served, model_config, served, tokenizer
from in_loop import in_loop

from vllm_obs.server.config import ServerConfig

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 80}
THOUGHT = "Hm, one and two."
QWEN = ServerConfig(reasoning_parser="qwen3")
SPLIT = {"include_usage": True, "continuous_usage_stats": True}
NUM = len(tokenizer().encode(f"<think>{THOUGHT}", add_special_tokens=False)) - len(
    tokenizer().encode("<think>", add_special_tokens=False)
)


def thinking(text: str = f"<think>{THOUGHT}</think>Yes.") -> FakeEngine:
    return FakeEngine(lambda request: [*tokenizer().encode(text, add_special_tokens=False), 2])


async def usage_of(app: Served, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The usage of a reply, or the last one of a stream."""
    reply = await app.post(path, body)
    assert reply.status_code == 200, reply.text
    if not body.get("stream"):
        return dict(reply.json()["usage"])
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: {")]
    found = [json.loads(line) for line in lines]
    usages = [part.get("usage") or part.get("response", {}).get("usage") for part in found]
    return dict([usage for usage in usages if usage][-1])


@pytest.mark.parametrize(
    ("fields", "num"),
    [
        ({}, NUM),
        ({"n": 2, "temperature": 1.0}, 2 * NUM),
        ({"stream": True, "stream_options": {"include_usage": True}}, NUM),
        ({"stream": True, "stream_options": SPLIT, "n": 2, "temperature": 1.0}, 2 * NUM),
        ({"include_reasoning": False}, NUM),
        ({"include_reasoning": False, "stream": True, "stream_options": SPLIT}, NUM),
    ],
)
@in_loop
async def test_a_chat_counts_what_was_thought(fields: dict[str, Any], num: int) -> None:
    async with served(thinking(), QWEN) as app:
        usage = await usage_of(app, CHAT, {**ASK, **fields})
    assert usage["completion_tokens_details"] == {"reasoning_tokens": num}


BEGUN = "{{ messages[0].content }}<think>\n{% if not enable_thinking | default(true) %}\n</think>\n\n{% endif %}"


@pytest.mark.parametrize(("name", "stream"), [("qwen3", False), ("qwen3", True), ("deepseek_r1", False)])
@in_loop
async def test_a_thought_that_the_template_began_or_ended_is_told_apart(name: str, stream: bool) -> None:
    config = model_config()
    config = replace(config, model=replace(config.model, chat_template=BEGUN))
    parser = ServerConfig(reasoning_parser=name)
    async with served(thinking(f"{THOUGHT}</think>Yes."), parser, config=config) as app:
        reply = await app.post(RESPONSES, {"input": "Hi"})
        assert [item["content"][0]["text"] for item in reply.json()["output"]] == [THOUGHT, "Yes."]
        usage = await usage_of(app, CHAT, {**ASK, "stream": stream, "stream_options": SPLIT if stream else None})
        assert usage["completion_tokens_details"] == {"reasoning_tokens": NUM}
        content = (await app.post(MESSAGES, {**ASK, "model": MODEL, "thinking": {"type": "adaptive"}})).json()
        assert [block["type"] for block in content["content"]] == ["thinking", "text"]
    async with served(thinking("Yes."), parser, config=config) as app:
        message = (await app.post(CHAT, {**ASK, "reasoning_effort": "none"})).json()["choices"][0]["message"]
        assert (message["content"], message["reasoning"]) == ("Yes.", None)


@in_loop
async def test_no_thought_has_no_tokens_and_no_parser_tells_nothing() -> None:
    async with served(thinking("Yes."), QWEN) as app:
        assert (await usage_of(app, CHAT, ASK))["completion_tokens_details"] == {"reasoning_tokens": 0}
    async with served(thinking()) as app:
        assert (await usage_of(app, CHAT, ASK))["completion_tokens_details"] is None
        streamed = await usage_of(app, CHAT, {**ASK, "stream": True, "stream_options": {"include_usage": True}})
        assert "completion_tokens_details" not in streamed
        assert (await usage_of(app, MESSAGES, {**ASK, "model": MODEL}))["output_tokens_details"] is None


@pytest.mark.parametrize("stream", [False, True])
@in_loop
async def test_the_other_apis_count_the_same(stream: bool) -> None:
    async with served(thinking(), QWEN) as app:
        message = await usage_of(app, MESSAGES, {**ASK, "model": MODEL, "stream": stream})
        response = await usage_of(app, RESPONSES, {"input": "Hi", "stream": stream})
    assert message["output_tokens_details"] == {"thinking_tokens": NUM}
    assert response["output_tokens_details"]["reasoning_tokens"] == NUM


def ids_of(text: str) -> list[int]:
    return tokenizer().encode(text, add_special_tokens=False)


BROKEN = ids_of("\U0001f642")[:-1]
LONG = "one two three " * 40
SPECIAL = ids_of("<|im_start|>")
ENDED = [*ids_of(THOUGHT), *BROKEN, *ids_of(LONG)]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("thought", "rest"),
    [
        ([*ids_of(THOUGHT), *BROKEN], []),
        (BROKEN, []),
        (ENDED, [*ids_of("</think>Yes."), 2]),
        ([*ids_of(THOUGHT), *BROKEN], [*ids_of("</think>Yes."), 2]),
        ([*ids_of(THOUGHT), *SPECIAL, *ids_of(LONG)], [*ids_of("</think>Yes."), 2]),
        ([*BROKEN, *SPECIAL, *ids_of(LONG)], []),
    ],
)
@in_loop
async def test_half_a_character_or_a_special_token_in_a_thought_loses_no_count(
    thought: list[int], rest: list[int], stream: bool
) -> None:
    tokens = [*ids_of("<think>"), *thought, *rest]
    fields = {"stream": stream, "max_tokens": len(tokens)}
    async with served(FakeEngine(lambda request: tokens), QWEN) as app:
        options = {"stream_options": {"include_usage": True}} if stream else {}
        chat = await usage_of(app, CHAT, {**ASK, **fields, **options})
        message = await usage_of(app, MESSAGES, {**ASK, **fields, "model": MODEL})
        response = await usage_of(
            app, RESPONSES, {"input": "Hi", "stream": stream, "max_output_tokens": len(tokens)}
        )
    assert chat["completion_tokens_details"] == {"reasoning_tokens": len(thought)}
    assert message["output_tokens_details"] == {"thinking_tokens": len(thought)}
    assert response["output_tokens_details"]["reasoning_tokens"] == len(thought)


@in_loop
async def test_special_tokens_that_are_asked_for_count_too() -> None:
    tokens = [*ids_of("<think>"), *SPECIAL, *ids_of(THOUGHT), *SPECIAL, *ids_of("</think>Yes."), 2]
    async with served(FakeEngine(lambda request: tokens), QWEN) as app:
        usage = await usage_of(app, CHAT, {**ASK, "skip_special_tokens": False})
        response = await usage_of(app, RESPONSES, {"input": "Hi", "skip_special_tokens": False})
    assert usage["completion_tokens_details"] == {"reasoning_tokens": NUM + 2}
    assert response["output_tokens_details"]["reasoning_tokens"] == NUM + 2

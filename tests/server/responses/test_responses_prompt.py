"""From items to a prompt: what belongs together, and what gives way where there is no room."""

import asyncio
from typing import Any

import httpx
from http_app import served
from responses_client import HI, PATH, prompt_of, saying

from vllm_obs.server.responses_conversation import chat_messages
from vllm_obs.server.schema_responses_items import InputItem


def kept(*items: dict[str, Any]) -> list[dict[str, Any]]:
    return [InputItem.model_validate(item).kept() for item in items]


def call(number: int) -> dict[str, Any]:
    return {"type": "function_call", "call_id": f"c{number}", "name": "f", "arguments": "{}"}


def chat_call(number: int) -> dict[str, Any]:
    return {"id": f"c{number}", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def test_reasoning_and_calls_belong_to_the_message_they_stand_with() -> None:
    items = kept(
        {"role": "user", "content": [{"type": "input_text", "text": "A"}, {"type": "input_text", "text": "B"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]},
        {"role": "assistant", "content": "Look"},
        call(1),
        call(2),
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "2"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "So"}]},
        call(3),
        {"type": "function_call_output", "call_id": "c3", "output": ""},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "given up"}]},
        {"role": "developer", "content": "C"},
    )
    assert chat_messages("Be kind", items) == [
        {"role": "system", "content": "Be kind"},
        {"role": "user", "content": [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]},
        {"role": "assistant", "reasoning": "Hm", "content": "Look", "tool_calls": [chat_call(1), chat_call(2)]},
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
        {"role": "tool", "tool_call_id": "c2", "content": "2"},
        {"role": "assistant", "reasoning": "So", "tool_calls": [chat_call(3)]},
        {"role": "tool", "tool_call_id": "c3", "content": ""},
        {"role": "developer", "content": "C"},
    ]


def test_items_are_kept_as_they_are_given_back() -> None:
    message, output = kept(
        {"role": "assistant", "content": "Hi", "id": "msg_1", "phase": "final_answer"},
        {"type": "function_call_output", "call_id": "c1", "output": "1", "id": "fco_1"},
    )
    assert message == {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "Hi", "annotations": [], "logprobs": []}],
        "phase": "final_answer",
    }
    assert output == {
        "id": "fco_1",
        "type": "function_call_output",
        "call_id": "c1",
        "output": "1",
        "status": "completed",
    }


TURNS = [
    {"role": role, "content": f"{place} " + "word " * 100} for place in range(40) for role in ("user", "assistant")
]


def ask(fields: dict[str, Any]) -> tuple[httpx.Response, str]:
    engine = saying("Hi")

    async def scenario() -> httpx.Response:
        async with served(engine) as app:
            return await app.post(PATH, {**HI, **fields})

    reply = asyncio.run(scenario())
    return reply, prompt_of(engine.added[0]) if engine.added else ""


def test_the_oldest_turns_give_way_where_that_is_wanted() -> None:
    turns = [*TURNS, {"role": "user", "content": "Last"}]
    reply, prompt = ask({"input": turns, "instructions": "Be kind", "truncation": "auto", "max_output_tokens": 8})
    assert reply.status_code == 200
    num_tokens = reply.json()["usage"]["input_tokens"]
    assert 2040 - 2 * 110 <= num_tokens <= 2040
    first = next(place for place in range(40) if f"<|im_start|>user\n{place} word" in prompt)
    assert first > 20
    assert prompt.startswith("<|im_start|>system\nBe kind<|im_end|>\n<|im_start|>user\n")
    assert all(f"<|im_start|>user\n{place} word" in prompt for place in range(first, 40))
    assert "Last" in prompt


def test_a_conversation_that_fits_is_left_alone() -> None:
    _, whole = ask({"input": TURNS[:5]})
    _, truncated = ask({"input": TURNS[:5], "truncation": "auto"})
    assert whole == truncated


def test_where_not_even_the_last_turn_fits_it_is_refused() -> None:
    for fields in ({"input": TURNS}, {"input": "word " * 3000, "truncation": "auto"}):
        reply, _ = ask(fields)
        error = reply.json()["error"]
        assert (reply.status_code, error["reason"], error["param"]) == (400, "context_length_exceeded", "input")

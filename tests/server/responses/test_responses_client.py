"""What the official client does with /v1/responses: whole, streamed, parsed, with tools and over several turns."""

import asyncio
import json
from typing import Any

import pytest
from http_app import MODEL, socket_server
from openai import OpenAI
from pydantic import BaseModel
from responses_client import HI, PATH, TOOLS, asked_by_openai, events_of, prompt_of, saying, without_ids

from vllm_obs.engine.structured.params import StructuredOutputsParams
from vllm_obs.server.config import ServerConfig

WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": None,
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'


class City(BaseModel):
    """What is parsed."""

    name: str
    size: int


def test_a_whole_response() -> None:
    async def scenario() -> dict[str, Any]:
        async with asked_by_openai(saying("Hello you")) as (client, _):
            response = await client.responses.create(
                model=MODEL, input="Hi", instructions="Be kind", metadata={"a": "b"}, temperature=0
            )
            assert response.output_text == "Hello you"
            assert await client.responses.retrieve(response.id) == response
            return response.to_dict()

    reply = asyncio.run(scenario())
    assert reply["completed_at"] >= reply["created_at"]
    assert (reply["id"][:5], reply["output"][0]["id"][:4]) == ("resp_", "msg_")
    empty = ("prompt", "kv_transfer_params", "ec_transfer_params", "input_messages", "output_messages", "user")
    part = {"type": "output_text", "text": "Hello you", "annotations": [], "logprobs": []}
    assert without_ids(reply) == {
        "object": "response",
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "model": MODEL,
        "output": [{"type": "message", "status": "completed", "role": "assistant", "content": [part]}],
        "usage": {
            "input_tokens": 17,
            "input_tokens_details": {
                "cached_tokens": 0,
                "cache_write_tokens": 0,
                "input_tokens_per_turn": [],
                "cached_tokens_per_turn": [],
            },
            "output_tokens": 3,
            "output_tokens_details": {
                "reasoning_tokens": 0,
                "tool_output_tokens": 0,
                "output_tokens_per_turn": [],
                "tool_output_tokens_per_turn": [],
            },
            "total_tokens": 20,
        },
        "background": False,
        "instructions": "Be kind",
        "max_output_tokens": None,
        "max_tool_calls": None,
        "metadata": {"a": "b"},
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "reasoning": None,
        "safety_identifier": None,
        "service_tier": "auto",
        "store": True,
        "temperature": 0.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1.0,
        "truncation": "disabled",
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        **dict.fromkeys(empty),
    }


@pytest.mark.parametrize(
    ("text", "server", "fields"),
    [
        ("Hello there, you", ServerConfig(), {}),
        ("Hello there, you", ServerConfig(), {"max_output_tokens": 2}),
        ("Hello there, you", ServerConfig(), {"include": ["message.output_text.logprobs"], "top_logprobs": 2}),
        ("", ServerConfig(), {}),
        ("Look:" + CALL + "So " + CALL, TOOLS, {"tools": [WEATHER]}),
        ("Look:" + CALL, TOOLS, {"tools": [WEATHER], "max_output_tokens": 20}),
        ('{"city": "Rome"}', ServerConfig(), {"tools": [WEATHER], "tool_choice": {**WEATHER, "parameters": None}}),
        ("<think>Hm, well.</think>Yes \U0001f600", ServerConfig(reasoning_parser="qwen3"), {"top_logprobs": 1}),
        ("<think>Hm, well.", ServerConfig(reasoning_parser="qwen3"), {"max_output_tokens": 5}),
    ],
)
def test_a_stream_ends_with_the_whole_response(text: str, server: ServerConfig, fields: dict[str, Any]) -> None:
    async def scenario() -> tuple[dict[str, Any], list[dict[str, Any]]]:
        async with asked_by_openai(saying(text), server) as (client, app):
            whole = await app.post(PATH, {**HI, **fields})
            assert whole.status_code == 200, whole.text
            streamed = await app.post(PATH, {**HI, **fields, "stream": True})
            kept = await client.responses.retrieve(events_of(streamed.text)[-1]["response"]["id"])
            assert kept.to_dict() == events_of(streamed.text)[-1]["response"]
            return whole.json(), events_of(streamed.text)

    whole, events = asyncio.run(scenario())
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1]["type"] == "response." + whole["status"]
    assert without_ids(events[-1]["response"]) == without_ids(whole)
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == events[-1]["response"]["output"]
    for index, item in enumerate(done):
        texts = [event["delta"] for event in events if event.get("output_index") == index and "delta" in event]
        assert "".join(texts) == (
            item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        )


def test_a_response_that_is_cut_says_so() -> None:
    async def scenario() -> Any:
        async with asked_by_openai(saying("Hello there, you")) as (client, _):
            return await client.responses.create(model=MODEL, input="Hi", max_output_tokens=2)

    response = asyncio.run(scenario())
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (response.output[0].status, response.completed_at) == ("incomplete", None)


def test_reasoning_is_an_item_of_its_own_with_its_tokens_counted() -> None:
    server = ServerConfig(reasoning_parser="qwen3")

    async def scenario() -> Any:
        async with asked_by_openai(saying("<think>Hm, well.</think>Yes"), server) as (client, _):
            return await client.responses.create(
                model=MODEL, input="Hi", reasoning={"effort": "low", "summary": "auto"}, top_logprobs=0
            )

    response = asyncio.run(scenario())
    thought, message = response.output
    assert (thought.type, thought.content[0].text, message.content[0].text) == ("reasoning", "Hm, well.", "Yes")
    assert response.usage.output_tokens_details.reasoning_tokens == 5
    assert response.reasoning.to_dict() == {"effort": "low", "summary": "auto"}
    assert thought.summary == []


def test_the_streaming_helper_and_parsing() -> None:
    async def scenario() -> tuple[Any, Any, str]:
        async with asked_by_openai(saying('{"name": "Rome", "size": 3}')) as (client, app):
            parsed = await client.responses.parse(model=MODEL, input="Hi", text_format=City)
            async with client.responses.stream(model=MODEL, input="Hi", text_format=City) as stream:
                async for _ in stream:
                    pass
                final = await stream.get_final_response()
            return parsed, final, app.engine.added[0].sampling.grammar

    parsed, final, grammar = asyncio.run(scenario())
    assert parsed.output_parsed == final.output_parsed == City(name="Rome", size=3)
    schema = {**City.model_json_schema(), "additionalProperties": False}
    assert grammar == StructuredOutputsParams(json=schema).grammar_text()
    assert (parsed.text.format.type, parsed.text.format.name) == ("json_schema", "City")


def test_a_tool_loop() -> None:
    async def scenario() -> tuple[Any, Any, str]:
        async with asked_by_openai(saying(CALL, "It is 18 C."), TOOLS) as (client, app):
            asked: list[Any] = [{"role": "user", "content": "Weather in Rome?"}]
            first = await client.responses.create(model=MODEL, input=asked, tools=[WEATHER])
            (call,) = first.output
            assert call.type == "function_call"
            output = {"type": "function_call_output", "call_id": call.call_id, "output": json.dumps({"c": 18})}
            asked += [call.to_dict(), output]
            last = await client.responses.create(model=MODEL, input=asked, tools=[WEATHER])
            return call, last, prompt_of(app.engine.added[1])

    call, last, prompt = asyncio.run(scenario())
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Rome"})
    assert last.output_text == "It is 18 C."
    assert '<|im_start|>tool\n{"c": 18}<|im_end|>' in prompt


def test_a_conversation_goes_on_from_its_id() -> None:
    async def scenario() -> list[str]:
        async with asked_by_openai(saying("One", "Two", "Three")) as (client, app):
            first = await client.responses.create(model=MODEL, input="A", instructions="Be kind")
            second = await client.responses.create(
                model=MODEL, input="B", previous_response_id=first.id, instructions="Be short"
            )
            await client.responses.delete(first.id)
            await client.responses.create(model=MODEL, input="C", previous_response_id=second.id)
            turns: list[Any] = [
                {"role": "user", "content": "A"},
                {"role": "assistant", "content": "One"},
                {"role": "user", "content": [{"type": "input_text", "text": "B"}]},
                {"role": "assistant", "content": [{"type": "output_text", "text": "Two"}]},
                {"role": "user", "content": "C"},
            ]
            await client.responses.create(model=MODEL, input=turns)
            await client.responses.create(model=MODEL, input=turns[:3], instructions="Be short")
            return [prompt_of(request) for request in app.engine.added]

    prompts = asyncio.run(scenario())
    assert (prompts[2], prompts[1]) == (prompts[3], prompts[4])


def test_items_are_listed_and_referred_to() -> None:
    async def scenario() -> tuple[list[Any], list[Any], str]:
        async with asked_by_openai(saying("One", "Two")) as (client, app):
            first = await client.responses.create(model=MODEL, input="A")
            reference: Any = {"type": "item_reference", "id": first.output[0].id}
            second = await client.responses.create(
                model=MODEL, input=[{"role": "user", "content": "A"}, reference, {"role": "user", "content": "B"}]
            )
            page = await client.responses.input_items.list(second.id, limit=2, order="asc")
            items = [item async for item in page]
            last = await client.responses.input_items.list(second.id, limit=1)
            return items, last.data, prompt_of(app.engine.added[1])

    items, last, prompt = asyncio.run(scenario())
    assert [(item.role, item.content[0].text) for item in items] == [
        ("user", "A"),
        ("assistant", "One"),
        ("user", "B"),
    ]
    assert last == items[-1:]
    assert "<|im_start|>assistant\nOne<|im_end|>\n<|im_start|>user\nB" in prompt


def test_what_is_not_stored_is_not_there() -> None:
    async def scenario() -> int:
        async with asked_by_openai(saying("One")) as (client, app):
            response = await client.responses.create(model=MODEL, input="A", store=False)
            return (await app.client.get(f"{PATH}/{response.id}")).status_code

    assert asyncio.run(scenario()) == 404


def test_tokens_are_counted_without_the_engine() -> None:
    async def scenario() -> tuple[int, int, int]:
        async with asked_by_openai(saying("One")) as (client, app):
            counted = await client.responses.input_tokens.count(model=MODEL, input="Hi")
            num_added = len(app.engine.added)
            response = await client.responses.create(model=MODEL, input="Hi")
            assert response.usage is not None
            return counted.input_tokens, response.usage.input_tokens, num_added

    counted, used, num_added = asyncio.run(scenario())
    assert (counted, num_added) == (used, 0)


def test_the_synchronous_client() -> None:
    with socket_server() as server:
        client = OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0)
        with client:
            whole = client.responses.create(model=MODEL, input="Hi", max_output_tokens=3)
            with client.responses.create(model=MODEL, input="Hi", max_output_tokens=3, stream=True) as stream:
                events = list(stream)
    assert whole.output_text == "..."
    assert events[-1].type == "response.incomplete"
    assert without_ids(events[-1].response.to_dict()) == without_ids(whole.to_dict())

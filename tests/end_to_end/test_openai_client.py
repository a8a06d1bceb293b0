"""The official client against a real server: every route that it knows, synchronous and asynchronous."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Literal

import httpx2
import numpy as np
import openai
import pytest
from either_client import got, listed, opened
from in_loop import in_loop
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel
from responses_client import without_ids
from serving import MODEL, Server

QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]
ANSWER = "The capital of France is Paris."
GREEDY: Any = {"model": MODEL, "temperature": 0}
CHAT: Any = {**GREEDY, "messages": QUESTION, "max_tokens": 20}
RESPONSE: Any = {**GREEDY, "input": QUESTION, "max_output_tokens": 20}
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER: Any = {"name": "get_weather", "description": "The weather in a city", "parameters": CITY}
TOOL: Any = {"type": "function", "function": WEATHER}
RESPONSE_TOOL: Any = {"type": "function", "strict": True, **WEATHER}
WEATHER_QUESTION: Any = {"role": "user", "content": "What is the weather in Rome?"}

Opened = Callable[[], AbstractAsyncContextManager[Any]]


class GetWeather(BaseModel):
    """The weather in a city."""

    city: Literal["Rome", "Oslo"]


class Verdict(BaseModel):
    """What is parsed."""

    answer: Literal["yes", "no"]
    sure: bool


@pytest.fixture(scope="module")
def server(default_server: Server) -> Server:
    return default_server


@pytest.fixture(params=[OpenAI, AsyncOpenAI], ids=["sync", "async"])
def client(server: Server, request: pytest.FixtureRequest) -> Opened:
    @asynccontextmanager
    async def open_client() -> AsyncIterator[Any]:
        url = f"http://127.0.0.1:{server.port}/v1"
        async with opened(request.param(base_url=url, api_key="none", max_retries=0)) as made:
            yield made

    return open_client


@in_loop
async def test_completions_take_texts_and_tokens_alone_or_in_lists(client: Opened) -> None:
    asked: Any = {**GREEDY, "max_tokens": 6}
    async with client() as ask:
        whole = await got(ask.completions.create(**asked, prompt="The capital of France is"))
        ids = [504, 3575, 282, 4649, 314]
        pair = await got(ask.completions.create(**asked, prompt=["The capital of France is"] * 2, n=2))
        tokens = await got(ask.completions.create(**asked, prompt=ids))
        lists = await got(ask.completions.create(**asked, prompt=[ids, ids]))
    text = whole.choices[0].text
    assert text.startswith(" Paris.")
    assert [choice.text for choice in pair.choices] == [text] * 4
    assert [choice.index for choice in pair.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in [*tokens.choices, *lists.choices]] == [text] * 3
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens, whole.usage.total_tokens) == (5, 6, 11)


@in_loop
async def test_a_completion_is_streamed_scored_and_takes_fields_that_openai_does_not_have(client: Opened) -> None:
    asked: Any = {**GREEDY, "prompt": "The capital of France is", "max_tokens": 4, "logprobs": 1}
    async with client() as ask:
        whole = await got(ask.completions.create(**asked, echo=True, stop=["\n"]))
        chunks = await listed(ask.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
        own = await got(ask.completions.create(**asked, extra_body={"return_token_ids": True, "min_tokens": 4}))
    assert whole.choices[0].text == "The capital of France is Paris."
    assert whole.choices[0].logprobs.tokens[:7] == ["The", " capital", " of", " France", " is", " Paris", "."]
    assert whole.choices[0].logprobs.token_logprobs[0] is None
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == own.choices[0].text
    assert chunks[-1].usage == own.usage
    assert len(own.choices[0].model_extra["token_ids"]) == 4


@in_loop
async def test_a_chat_is_the_same_whole_streamed_and_through_the_streaming_helper(client: Opened) -> None:
    asked: Any = {**CHAT, "logprobs": True, "top_logprobs": 2}
    told: Any = {"stream_options": {"include_usage": True}}
    async with client() as ask:
        whole = await got(ask.chat.completions.create(**asked))
        chunks = await listed(ask.chat.completions.create(**asked, **told, stream=True))
        async with opened(ask.chat.completions.stream(**asked, **told)) as stream:
            events = await listed(stream)
            final = await got(stream.get_final_completion())
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == (ANSWER, "stop")
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == ANSWER
    scored = [choice.logprobs for chunk in chunks for choice in chunk.choices if choice.logprobs]
    entries = [entry for logprobs in scored for entry in logprobs.content]
    assert entries == whole.choices[0].logprobs.content
    assert b"".join(bytes(entry.bytes) for entry in entries[:-1]).decode() == ANSWER
    assert "".join(event.delta for event in events if event.type == "content.delta") == ANSWER
    assert final.choices[0].message.content == ANSWER
    assert chunks[-1].usage == final.usage == whole.usage


@in_loop
async def test_several_choices_are_told_apart_in_a_stream(client: Opened) -> None:
    asked: Any = {**CHAT, "temperature": 1, "seed": 4, "n": 3, "max_tokens": 8}
    async with client() as ask:
        whole = await got(ask.chat.completions.create(**asked))
        chunks = await listed(ask.chat.completions.create(**asked, stream=True))
    texts = ["", "", ""]
    for choice in [choice for chunk in chunks for choice in chunk.choices]:
        texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in whole.choices]
    assert len({*texts}) > 1


@in_loop
async def test_a_chat_is_parsed_whole_and_as_it_streams(client: Opened) -> None:
    asked: Any = {**CHAT, "max_tokens": 60, "response_format": Verdict}
    async with client() as ask:
        parsed = await got(ask.chat.completions.parse(**asked))
        async with opened(ask.chat.completions.stream(**asked)) as stream:
            final = await got(stream.get_final_completion())
        with pytest.raises(openai.LengthFinishReasonError):
            await got(ask.chat.completions.parse(**{**asked, "max_tokens": 2}))
    assert isinstance(parsed.choices[0].message.parsed, Verdict)
    assert final.choices[0].message.parsed == parsed.choices[0].message.parsed


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
@in_loop
async def test_a_chat_calls_a_tool_and_goes_on_with_what_it_says(client: Opened, choice: Any) -> None:
    messages: list[Any] = [WEATHER_QUESTION]
    asked: Any = {**CHAT, "max_tokens": 80, "tools": [TOOL]}
    async with client() as ask:
        called = await got(ask.chat.completions.create(**{**asked, "messages": messages}, tool_choice=choice))
        chunks = await listed(
            ask.chat.completions.create(**{**asked, "messages": messages}, tool_choice=choice, stream=True)
        )
        messages.append(called.choices[0].message)
        for call in called.choices[0].message.tool_calls:
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "18 C and sunny"})
        asked |= {"messages": messages, "max_tokens": 12}
        last = await got(ask.chat.completions.create(**asked, tool_choice="none"))
    calls = [call.function for call in called.choices[0].message.tool_calls]
    assert {call.name for call in calls} == {"get_weather"}
    assert all(GetWeather.model_validate_json(call.arguments) for call in calls)
    streamed: dict[int, list[str]] = {}
    for part in [part for chunk in chunks for choice in chunk.choices for part in choice.delta.tool_calls or []]:
        streamed.setdefault(part.index, []).append(part.function.arguments or "")
    assert ["".join(parts) for parts in streamed.values()] == [call.arguments for call in calls]
    assert chunks[-1].choices[0].finish_reason == called.choices[0].finish_reason
    assert last.choices[0].message.content
    assert last.choices[0].message.tool_calls is None
    assert last.usage.prompt_tokens > called.usage.prompt_tokens


@in_loop
async def test_arguments_are_parsed_whole_and_as_they_stream(client: Opened) -> None:
    tool = openai.pydantic_function_tool(GetWeather, name="get_weather")
    asked: Any = {**CHAT, "messages": [WEATHER_QUESTION], "max_tokens": 80, "tools": [tool]}
    asked |= {"tool_choice": {"type": "function", "function": {"name": "get_weather"}}}
    async with client() as ask:
        whole = await got(ask.chat.completions.parse(**asked))
        async with opened(ask.chat.completions.stream(**asked)) as stream:
            events = await listed(stream)
            final = await got(stream.get_final_completion())
    (call,) = whole.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, GetWeather)
    (done,) = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert (done.name, done.parsed_arguments) == ("get_weather", call.function.parsed_arguments)
    assert final.choices[0].message.tool_calls[0].function == call.function


@in_loop
async def test_a_response_is_the_same_whole_streamed_kept_and_through_the_helper(client: Opened) -> None:
    async with client() as ask:
        whole = await got(ask.responses.create(**RESPONSE))
        events = await listed(ask.responses.create(**RESPONSE, stream=True))
        async with opened(ask.responses.stream(**RESPONSE)) as stream:
            deltas = [event.delta for event in await listed(stream) if event.type == "response.output_text.delta"]
            final = await got(stream.get_final_response())
        kept = await got(ask.responses.retrieve(whole.id))
        items = await listed(ask.responses.input_items.list(whole.id))
        counted = await got(ask.responses.input_tokens.count(model=MODEL, input=QUESTION))
        await got(ask.responses.delete(whole.id))
        with pytest.raises(openai.NotFoundError):
            await got(ask.responses.retrieve(whole.id))
    assert (whole.status, whole.output_text, "".join(deltas)) == ("completed", ANSWER, ANSWER)
    assert kept == whole
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1].type == "response.completed"
    for other in (events[-1].response, final):
        assert told(other) == told(whole)
    assert [(item.role, item.content[0].text) for item in items] == [("user", QUESTION[0]["content"])]
    assert counted.input_tokens == whole.usage.input_tokens


def told(response: Any) -> Any:
    """A response without what is new each time, what the prefix cache brought, and what the helper adds."""
    fields: dict[str, Any] = response.to_dict(exclude_none=True)
    del fields["usage"]["input_tokens_details"]
    return without_ids(fields)


@in_loop
async def test_a_response_is_parsed_whole_and_as_it_streams(client: Opened) -> None:
    asked: Any = {**RESPONSE, "max_output_tokens": 60, "text_format": Verdict}
    async with client() as ask:
        parsed = await got(ask.responses.parse(**asked))
        async with opened(ask.responses.stream(**asked)) as stream:
            final = await got(stream.get_final_response())
    assert isinstance(parsed.output_parsed, Verdict)
    assert final.output_parsed == parsed.output_parsed


@pytest.mark.parametrize("is_kept", [True, False], ids=["by id", "by its items"])
@in_loop
async def test_a_response_calls_a_tool_and_goes_on_with_what_it_says(client: Opened, is_kept: bool) -> None:
    asked: Any = {**GREEDY, "max_output_tokens": 80, "tools": [RESPONSE_TOOL]}
    async with client() as ask:
        called = await got(ask.responses.create(**asked, input=[WEATHER_QUESTION], tool_choice="required"))
        outputs: list[Any] = [
            {"type": "function_call_output", "call_id": call.call_id, "output": "18 C and sunny"}
            for call in called.output
        ]
        before: Any = {"previous_response_id": called.id} if is_kept else {}
        turns: list[Any] = [] if is_kept else [WEATHER_QUESTION, *called.output]
        asked |= {"max_output_tokens": 12, "tool_choice": "none"}
        last = await got(ask.responses.create(**asked, **before, input=[*turns, *outputs]))
    assert {(call.type, call.name) for call in called.output} == {("function_call", "get_weather")}
    assert all(GetWeather.model_validate_json(call.arguments) for call in called.output)
    assert last.output_text
    assert last.usage.input_tokens > called.usage.input_tokens


@in_loop
async def test_a_response_in_the_background_is_followed_and_cancelled(client: Opened) -> None:
    asked: Any = {**GREEDY, "input": "Tell me a story", "background": True}
    long: Any = {**asked, "max_output_tokens": 1500, "extra_body": {"ignore_eos": True}}
    async with client() as ask:
        queued = await got(ask.responses.create(**asked, max_output_tokens=6))
        for _ in range(600):
            done = await got(ask.responses.retrieve(queued.id))
            if done.status not in ("queued", "in_progress"):
                break
            await asyncio.sleep(0.05)
        running = await got(ask.responses.create(**long))
        cancelled = await got(ask.responses.cancel(running.id))
        again = await got(ask.responses.cancel(running.id))
        events = await listed(ask.responses.create(**asked, max_output_tokens=6, stream=True))
        place = events[3].sequence_number
        rest = await listed(ask.responses.retrieve(events[0].response.id, stream=True, starting_after=place))
    assert (queued.status, done.status, done.usage.output_tokens) == ("queued", "incomplete", 6)
    assert (cancelled.status, again.status) == ("cancelled", "cancelled")
    assert rest == events[4:]


@in_loop
async def test_vectors_are_the_same_in_every_form(client: Opened) -> None:
    texts = ["The capital of France", "Cats sleep a lot"]
    async with client() as ask:
        default = await got(ask.embeddings.create(model=MODEL, input=texts))
        plain = await got(ask.embeddings.create(model=MODEL, input=texts, encoding_format="float"))
        coded = await got(ask.embeddings.create(model=MODEL, input=texts, encoding_format="base64"))
        tokens = await got(ask.embeddings.create(model=MODEL, input=[504, 3575, 282, 4649]))
        with pytest.raises(openai.BadRequestError) as refused:
            await got(ask.embeddings.create(model=MODEL, input="x", dimensions=3))
    vectors = np.array([row.embedding for row in plain.data], np.float32)
    assert vectors.shape == (2, 576)
    np.testing.assert_array_equal(vectors, np.array([row.embedding for row in default.data], np.float32))
    raw = [np.frombuffer(base64.b64decode(row.embedding), "<f4") for row in coded.data]
    np.testing.assert_array_equal(vectors, np.stack(raw))
    np.testing.assert_allclose(vectors[0], np.array(tokens.data[0].embedding, np.float32), atol=1e-5)
    assert refused.value.param == "dimensions"


@in_loop
async def test_models_are_listed_and_errors_are_the_clients_own(client: Opened) -> None:
    async with client() as ask:
        assert [model.id for model in await listed(ask.models.list())] == [MODEL]
        model = await got(ask.models.retrieve(MODEL))
        raw = await got(ask.chat.completions.with_raw_response.create(**{**CHAT, "max_tokens": 1}))
        with pytest.raises(openai.NotFoundError) as unknown:
            await got(ask.models.retrieve("nope"))
        with pytest.raises(openai.BadRequestError) as refused:
            await got(ask.chat.completions.create(**{**CHAT, "temperature": 3}))
    assert (model.id, model.model_extra["max_model_len"]) == (MODEL, 2048)
    assert raw.headers["x-request-id"] in (await got(raw.parse())).id
    assert unknown.value.status_code == 404
    error = refused.value
    assert (error.status_code, error.param, error.type) == (400, "temperature", "BadRequestError")
    assert error.request_id


def test_many_asynchronous_requests_at_once_are_those_asked_one_by_one(server: Server) -> None:
    async def ask_all() -> tuple[list[str], list[str]]:
        limits = httpx2.Limits(max_connections=4)
        async with (
            httpx2.AsyncClient(limits=limits) as transport,
            AsyncOpenAI(
                base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0, http_client=transport
            ) as ask,
        ):

            async def one(number: int) -> str:
                messages: Any = [{"role": "user", "content": f"What is {number} plus one?"}]
                reply = await ask.chat.completions.create(**{**CHAT, "messages": messages, "max_tokens": 4})
                return json.dumps(reply.choices[0].to_dict())

            together = await asyncio.gather(*(one(number) for number in range(8)))
            return together, [await one(number) for number in range(8)]

    together, alone = asyncio.run(ask_all())
    assert together == alone

"""LangChain, LiteLLM and Anthropic's client each chat, stream and call a tool, and ask nobody but our server."""

import json
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Any, Literal

import httpx2
import pytest
from either_client import got, listed, opened
from in_loop import in_loop
from late_module import LateModule
from pydantic import BaseModel
from serving import MODEL, Server

os.environ |= {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LANGSMITH_TRACING": "false",
    "LANGCHAIN_TRACING_V2": "false",
}
WHY = "the packages of the extra `clients` are not installed"
CLIENTS = ("litellm", "langchain_openai", "langchain_core", "anthropic")
litellm, langchain, anthropic = LateModule("litellm"), LateModule("langchain_openai"), LateModule("anthropic")
langchain_messages = LateModule("langchain_core.messages")

pytestmark = [
    pytest.mark.skipif(not all(map(find_spec, CLIENTS)), reason=WHY),
    # What pydantic has to say of LiteLLM.
    pytest.mark.filterwarnings(
        "ignore:Items? .* using the `ReadOnly` qualifier:UserWarning",
        "ignore:Accessing the 'model_(computed_)?fields' attribute on the instance:DeprecationWarning",
    ),
]

QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]
ANSWER = "The capital of France is Paris."
WEATHER_QUESTION: Any = {"role": "user", "content": "What is the weather in Rome?"}
RESULT = "18 C and sunny"
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "maxProperties": 1,
}
"""The limit ends every call; `additionalProperties` would, but LiteLLM does not pass it on to a vLLM."""
TOOL: Any = {"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": CITY}}


class Verdict(BaseModel):
    """Whether it is so."""

    answer: Literal["yes", "no"]


@pytest.fixture(scope="module")
def server(default_server: Server) -> Server:
    return default_server


@pytest.fixture(autouse=True)
def names_looked_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing but the loopback address is looked up, which every connection begins with."""
    looked_up = []
    look_up = socket.getaddrinfo

    def only_loopback(host: Any, *args: Any, **fields: Any) -> Any:
        looked_up.append(host)
        return look_up(host, *args, **fields)

    monkeypatch.setattr(socket, "getaddrinfo", only_loopback)
    yield
    assert {*looked_up} <= {"127.0.0.1", b"127.0.0.1"}


@asynccontextmanager
async def chat_model(server: Server, **fields: Any) -> AsyncIterator[Any]:
    """LangChain's chat model; its own connections would outlive the loop that they belong to."""
    url = f"http://127.0.0.1:{server.port}/v1"
    fields = {"temperature": 0, "max_tokens": 40, "max_retries": 0, **fields}
    async with httpx2.AsyncClient() as transport:
        yield langchain.ChatOpenAI(
            model=MODEL, base_url=url, api_key="none", http_async_client=transport, **fields
        )


@pytest.mark.parametrize("uses_responses", [False, True], ids=["chat", "responses"])
@in_loop
async def test_langchain_chats_and_streams(server: Server, uses_responses: bool) -> None:
    async with chat_model(server, use_responses_api=uses_responses, stream_usage=True) as model:
        whole, awaited = model.invoke(QUESTION), await model.ainvoke(QUESTION)
        streams = [model.stream(QUESTION), model.astream(QUESTION)]
        streamed = [sum_of(await listed(stream)) for stream in streams]
    for message in (whole, awaited, *streamed):
        assert message.text == ANSWER
        assert message.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"] > 0


def sum_of(chunks: list[Any]) -> Any:
    """The message that LangChain's chunks add up to."""
    assert len(chunks) > 2
    total = chunks[0]
    for chunk in chunks[1:]:
        total += chunk
    return total


@in_loop
async def test_langchain_calls_a_tool_and_goes_on_with_what_it_says(server: Server) -> None:
    asked = [langchain_messages.HumanMessage(WEATHER_QUESTION["content"])]
    async with chat_model(server) as model:
        forced = model.bind_tools([TOOL], tool_choice="get_weather")
        called, awaited = forced.invoke(asked), await forced.ainvoke(asked)
        streamed = sum_of(list(forced.stream(asked)))
        (call,) = called.tool_calls
        result = langchain_messages.ToolMessage(RESULT, tool_call_id=call["id"])
        last = await model.bind_tools([TOOL], tool_choice="none").ainvoke([*asked, called, result])
    assert (call["name"], call["args"]["city"] in ("Rome", "Oslo")) == ("get_weather", True)
    for message in (awaited, streamed):
        assert [(other["name"], other["args"]) for other in message.tool_calls] == [(call["name"], call["args"])]
    assert last.content
    assert last.usage_metadata["input_tokens"] > called.usage_metadata["input_tokens"]


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
@in_loop
async def test_langchain_parses_structured_output(server: Server, method: str) -> None:
    async with chat_model(server) as model:
        parsed = model.with_structured_output(Verdict, method=method)
        whole, awaited = parsed.invoke("Is water wet?"), await parsed.ainvoke("Is water wet?")
    assert isinstance(whole, Verdict)
    assert awaited == whole


@in_loop
async def test_langchain_embeds(server: Server) -> None:
    url = f"http://127.0.0.1:{server.port}/v1"
    # The check of lengths would load another model's tokenizer from the internet.
    asked: Any = {"model": MODEL, "base_url": url, "api_key": "none", "check_embedding_ctx_length": False}
    async with httpx2.AsyncClient() as transport:
        embeddings = langchain.OpenAIEmbeddings(**asked, http_async_client=transport)
        vectors = embeddings.embed_documents(["one", "another"])
        awaited = await embeddings.aembed_query("one")
    assert [len(vector) for vector in vectors] == [576, 576]
    assert awaited == pytest.approx(vectors[0], abs=1e-5)


@pytest.fixture(params=["openai", "hosted_vllm"])
def lite(server: Server, request: pytest.FixtureRequest) -> dict[str, Any]:
    """The fields of a call of LiteLLM, which knows servers like this one by two names."""
    url = f"http://127.0.0.1:{server.port}/v1"
    return {
        "model": f"{request.param}/{MODEL}",
        "api_base": url,
        "api_key": "none",
        "temperature": 0,
        "max_tokens": 40,
        "max_retries": 0,
    }


@pytest.mark.parametrize("name", ["completion", "acompletion"])
@in_loop
async def test_litellm_chats_and_streams(lite: dict[str, Any], name: str) -> None:
    complete = getattr(quiet_litellm(), name)
    whole = await got(complete(**lite, messages=QUESTION))
    chunks = await listed(complete(**lite, messages=QUESTION, stream=True, stream_options={"include_usage": True}))
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == (ANSWER, "stop")
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == ANSWER
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def quiet_litellm() -> LateModule:
    """LiteLLM without what it tells its makers."""
    litellm.module.telemetry = False
    return litellm


@pytest.mark.parametrize("name", ["completion", "acompletion"])
@in_loop
async def test_litellm_calls_a_tool_and_goes_on_with_what_it_says(lite: dict[str, Any], name: str) -> None:
    complete = getattr(quiet_litellm(), name)
    messages: list[Any] = [WEATHER_QUESTION]
    asked: Any = {**lite, "tools": [TOOL]}
    named = {"type": "function", "function": {"name": "get_weather"}}
    called = await got(complete(**asked, messages=messages, tool_choice=named))
    chunks = await listed(complete(**asked, messages=messages, tool_choice=named, stream=True))
    (call,) = called.choices[0].message.tool_calls
    parts = [part for chunk in chunks for part in chunk.choices[0].delta.tool_calls or []]
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")
    assert "".join(part.function.arguments or "" for part in parts) == call.function.arguments
    messages.append(called.choices[0].message)
    messages.append({"role": "tool", "tool_call_id": call.id, "content": RESULT})
    last = await got(complete(**asked, messages=messages, tool_choice="none"))
    assert last.choices[0].message.content
    assert last.usage.prompt_tokens > called.usage.prompt_tokens


@pytest.fixture(params=["Anthropic", "AsyncAnthropic"])
def claude(server: Server, request: pytest.FixtureRequest) -> Any:
    """Makes Anthropic's client."""
    make = getattr(anthropic, request.param)
    return lambda: opened(make(base_url=f"http://127.0.0.1:{server.port}", api_key="none", max_retries=0))


MESSAGE: Any = {"model": MODEL, "max_tokens": 40, "extra_body": {"temperature": 0}}


@in_loop
async def test_anthropics_client_chats_streams_and_counts(claude: Any) -> None:
    async with claude() as ask:
        whole = await got(ask.messages.create(**MESSAGE, messages=QUESTION))
        events = await listed(ask.messages.create(**MESSAGE, messages=QUESTION, stream=True))
        async with opened(ask.messages.stream(**MESSAGE, messages=QUESTION)) as stream:
            texts = await listed(stream.text_stream)
            final = await got(stream.get_final_message())
        counted = await got(ask.messages.count_tokens(model=MODEL, messages=QUESTION))
        with pytest.raises(anthropic.NotFoundError):
            await got(ask.messages.create(**{**MESSAGE, "model": "nope"}, messages=QUESTION))
    assert ([block.text for block in whole.content], whole.stop_reason) == ([ANSWER], "end_turn")
    assert (events[0].type, events[-1].type) == ("message_start", "message_stop")
    assert ("".join(texts), len(texts) > 2) == (ANSWER, True)
    assert [block.text for block in final.content] == [ANSWER]
    assert (final.usage.output_tokens, counted.input_tokens) == (
        whole.usage.output_tokens,
        whole.usage.input_tokens,
    )


@in_loop
async def test_anthropics_client_calls_a_tool_and_goes_on_with_what_it_says(claude: Any) -> None:
    tool = {"name": "get_weather", "description": "Weather", "input_schema": CITY}
    asked: Any = {**MESSAGE, "tools": [tool]}
    named = {"type": "tool", "name": "get_weather"}
    messages: list[Any] = [WEATHER_QUESTION]
    async with claude() as ask:
        called = await got(ask.messages.create(**asked, messages=messages, tool_choice=named))
        async with opened(ask.messages.stream(**asked, messages=messages, tool_choice=named)) as stream:
            parts = [event.partial_json for event in await listed(stream) if event.type == "input_json"]
            final = await got(stream.get_final_message())
        (call,) = called.content
        messages.append({"role": "assistant", "content": called.content})
        result = {"type": "tool_result", "tool_use_id": call.id, "content": RESULT}
        messages.append({"role": "user", "content": [result]})
        last = await got(ask.messages.create(**asked, messages=messages, tool_choice={"type": "none"}))
    assert (call.type, call.name, called.stop_reason) == ("tool_use", "get_weather", "tool_use")
    assert call.input["city"] in ("Rome", "Oslo")
    assert final.content[0].input == json.loads("".join(parts)) == call.input
    assert last.content[0].text
    assert last.usage.input_tokens > called.usage.input_tokens

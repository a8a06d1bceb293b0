"""In float32 a stream comes to its whole reply, n sequences are n requests, and log-probabilities are right."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import openai
import pytest
from asked import CHAT, TEXT, Asked
from event_assembler import told_message, told_response, without_new
from logprob_judge import LogprobJudge
from random_exchanges import TOOLS, random_exchange, repeated
from random_turns import random_message, random_response
from serving import MODEL, serving
from stream_assembler import Fields, chunks_of, nearly, told_by_stream, told_whole

pytestmark = pytest.mark.timeout(1800)

FLAGS = (
    *("--dtype", "float32", "--max-model-len", "2048", "--enable-prompt-tokens-details"),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3"),
)
CONCURRENCY = 8
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"

Told = tuple[Any, Any]
"""What a request's whole reply tells, and what its stream does."""


def some_and_more(some: range, *more: range) -> list[Any]:
    """Some numbers always, others in the long run."""
    longer = [pytest.param(numbers, marks=pytest.mark.long, id=f"from-{numbers.start}") for numbers in more]
    return [pytest.param(some, id="some"), *longer]


@pytest.fixture(scope="module")
def ask() -> Iterator[Asked]:
    with serving(*FLAGS) as server:
        yield Asked(server)


def told_of(ask: Asked, number: int) -> Told:
    """A random exchange, both ways. What was cached differs: the second of them finds more."""
    exchange = random_exchange(number)
    whole = told_whole(ask.reply(exchange.path, **exchange.body))
    streamed = told_by_stream(chunks_of(ask.post(exchange.path, **exchange.streamed)[1]))
    for told in (whole, streamed):
        (told["usage"] or {}).pop("prompt_tokens_details", None)
    return whole | ({"usage": None} if streamed["usage"] is None else {}), streamed


def check_all(tell: Callable[[int], Told], numbers: range) -> list[Any]:
    """What is told of these numbers, each alike in both ways."""
    with ThreadPoolExecutor(CONCURRENCY) as pool:
        told = dict(zip(numbers, pool.map(tell, numbers), strict=True))
    assert [number for number, (whole, streamed) in told.items() if streamed != nearly(whole)] == []
    return [whole for whole, _ in told.values()]


@pytest.mark.parametrize(
    "numbers", some_and_more(range(250, 264), range(1000, 1200), range(2000, 2200), range(3000, 3200))
)
def test_a_stream_of_a_completion_or_a_chat_comes_to_its_whole_reply(ask: Asked, numbers: range) -> None:
    told = check_all(partial(told_of, ask), numbers)
    choices = [choice for reply in told for choice in reply["choices"]]
    assert {choice["finish_reason"] for choice in choices} == {"stop", "length", "tool_calls"}
    assert any(isinstance(choice["stop_reason"], str) for choice in choices)
    assert any("\ufffd" in choice["text"] for choice in choices)
    for name in ("calls", "reasoning", "logprobs", "token_ids"):
        assert any(choice.get(name) for choice in choices), name


def typed_told(
    ask: Asked, path: str, make: Callable[[int], Fields], tell: Callable[[str], Fields], number: int
) -> Told:
    """A random body, both ways, but for what was cached."""
    body = make(number)
    whole, streamed = ask.reply(path, **body), tell(ask.post(path, **body, stream=True)[1])
    for told in (whole, streamed):
        usage = told["usage"]
        usage["input_tokens"] += usage.pop("cache_read_input_tokens", 0)
        usage.get("input_tokens_details", {}).pop("cached_tokens", None)
    return without_new(whole), without_new(streamed)


@pytest.mark.parametrize("numbers", some_and_more(range(12), range(1000, 1100)))
def test_the_events_of_a_response_come_to_the_whole_one(ask: Asked, numbers: range) -> None:
    told = check_all(partial(typed_told, ask, RESPONSES, random_response, told_response), numbers)
    assert {"message", "function_call"} <= {item["type"] for response in told for item in response["output"]}


@pytest.mark.parametrize("numbers", some_and_more(range(12), range(1000, 1100)))
def test_the_events_of_a_message_come_to_the_whole_one(ask: Asked, numbers: range) -> None:
    told = check_all(partial(typed_told, ask, MESSAGES, random_message, told_message), numbers)
    assert {"text", "tool_use"} <= {block["type"] for message in told for block in message["content"]}


def told_by_client(client: openai.OpenAI, number: int) -> Told:
    """A random chat, by the official client: whole, and as its stream helper puts it together."""
    body = random_exchange(number).body
    create: Any = partial(client.chat.completions.create, model=MODEL, messages=body["messages"])
    stream: Any = partial(client.chat.completions.stream, model=MODEL, messages=body["messages"])
    whole = create(extra_body=body)
    with stream(extra_body={**body, "stream_options": {"include_usage": True}}) as events:
        for _ in events:
            pass
        # It has no final completion for a text that was cut off, but an error.
        return client_told(whole), client_told(events.current_completion_snapshot)


def client_told(completion: Any) -> list[Any]:
    """What the client's object of a chat holds."""
    usage = completion.usage
    choices = [
        {
            "index": choice.index,
            "content": choice.message.content or "",
            "calls": [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()],
            "logprobs": [entry.model_dump() for entry in (choice.logprobs and choice.logprobs.content) or ()],
            "finish_reason": choice.finish_reason,
        }
        for choice in completion.choices
    ]
    return [choices, usage.prompt_tokens, usage.completion_tokens, usage.total_tokens]


@pytest.mark.parametrize("num_chats", [4, pytest.param(10, marks=pytest.mark.long)])
def test_the_official_client_puts_a_stream_together_to_the_same(ask: Asked, num_chats: int) -> None:
    chats = [number for number in range(20) if random_exchange(number).path == CHAT]
    body: Any = random_response(5)
    with openai.OpenAI(base_url=f"http://127.0.0.1:{ask.server.port}/v1", api_key="none", max_retries=0) as client:
        for number in chats[:num_chats]:
            whole, streamed = told_by_client(client, number)
            assert streamed == nearly(whole), number
        *_, last = client.responses.create(stream=True, extra_body=body)
    told = without_new(last.response.model_dump(mode="json", exclude_unset=True))["output"]
    assert told == nearly(without_new(ask.reply(RESPONSES, **body))["output"])


def test_both_ways_tell_as_many_cached_tokens(ask: Asked) -> None:
    story, other = "A tale of many words that is told twice. " * 12, "Another one of as many words as that. " * 12
    text = {"prompt": [story, other], "n": 2, "max_tokens": 3}
    chat = {"messages": repeated(story), "n": 2, "max_tokens": 3, "tools": TOOLS}
    for path, body in ((TEXT, text), (CHAT, chat)):
        ask.reply(path, **body)
        whole = told_whole(ask.reply(path, **body))
        stream = ask.post(path, **body, stream=True, stream_options={"include_usage": True})[1]
        assert told_by_stream(chunks_of(stream)) == nearly(whole)
        assert whole["usage"]["prompt_tokens_details"]["cached_tokens"] > 100
    body = {"messages": repeated(other), "max_tokens": 3}
    ask.reply(MESSAGES, **body)
    whole = ask.reply(MESSAGES, **body)
    assert told_message(ask.post(MESSAGES, **body, stream=True)[1])["usage"] == whole["usage"]
    assert whole["usage"]["cache_read_input_tokens"] > 100


def test_both_ways_refuse_constraints_that_leave_no_token(ask: Asked) -> None:
    body = {"prompt": "x", "structured_outputs": {"choice": ["no"]}, "allowed_token_ids": [504]}
    told = {
        "message": "the constraints on this request's tokens left none that could come next",
        "type": "BadRequestError",
        "param": None,
        "code": 400,
        "reason": "invalid_value",
    }
    assert ask.post(TEXT, **body) == (400, {"error": told})
    assert ask.events(TEXT, **body) == [{"error": told}]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (TEXT, {"prompt": "Once upon a time", "logprobs": 3, "top_k": 40, "presence_penalty": 0.5}),
        (TEXT, {"prompt": [[504, 3575], [5, 2, 30]], "logprobs": 0, "stop": "e"}),
        (CHAT, {"messages": repeated("I am."), "logprobs": True, "top_logprobs": 2, "top_p": 0.95}),
    ],
)
def test_n_sequences_of_a_seed_are_those_of_n_seeds_in_a_row(ask: Asked, path: str, body: Fields) -> None:
    body = {**body, "temperature": 1.5, "max_tokens": 12, "ignore_eos": True, "return_token_ids": True}
    together = told_whole(ask.reply(path, **body, n=4, seed=1234))["choices"]
    alone = [told_whole(ask.reply(path, **body, seed=1234 + index))["choices"] for index in range(4)]
    assert together == nearly([choices[place] for place in range(len(alone[0])) for choices in alone])
    assert len({choice["text"] for choice in together[:4]}) == 4


TOP = {"logprobs": 4, "prompt_logprobs": 4}
NAMED = {"return_token_ids": True, "return_tokens_as_token_ids": True, "max_tokens": 12, "ignore_eos": True}
EDITED = {"temperature": 1.3, "seed": 7, "frequency_penalty": 1.0, "logit_bias": {"504": 5}}
"""None of it changes what the model itself finds probable."""


@pytest.fixture(scope="module")
def judge() -> LogprobJudge:
    return LogprobJudge()


def test_logprobs_are_those_of_an_independent_computation(ask: Asked, judge: LogprobJudge) -> None:
    for text in ("The capital of France is", "日本語: こんにちは 🙂", list(range(300, 380))):
        for body in ({}, EDITED):
            choice = ask.text(text, **NAMED, **TOP, **body)
            told = choice["logprobs"]
            prompt = choice["prompt_token_ids"]
            judge.check(prompt, choice["token_ids"], told["top_logprobs"], choice["prompt_logprobs"])
            own = [entry[token] for entry, token in zip(told["top_logprobs"], told["tokens"], strict=True)]
            assert told["token_logprobs"] == own


def test_logprobs_of_a_chat_are_those_of_an_independent_computation(ask: Asked, judge: LogprobJudge) -> None:
    shown = {"logprobs": True, "top_logprobs": 4, "prompt_logprobs": 4}
    reply = ask.reply(CHAT, messages=repeated("Good morning."), **NAMED, **EDITED, **shown)
    choice = reply["choices"][0]
    entries = [
        {one["token"]: one["logprob"] for one in [*entry["top_logprobs"], entry]}
        for entry in choice["logprobs"]["content"]
    ]
    judge.check(reply["prompt_token_ids"], choice["token_ids"], entries, reply["prompt_logprobs"])

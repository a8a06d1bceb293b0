"""What users reported against servers of this kind, where the case needs flags of its own."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest
from asked import CHAT, TEXT, Asked, forced
from serving import MODEL, Server, serving

from vllm_obs.engine.frontend.llm import LLM
from vllm_obs.engine.sampling_params import SamplingParams

pytestmark = pytest.mark.timeout(600)

FLAGS = (
    *("--dtype", "float32", "--max-model-len", "2048"),
    *("--max-num-batched-tokens", "64", "--max-num-seqs", "8"),
    *("--served-model-name", "alpha", "beta", "--enable-prompt-tokens-details", "--enable-request-id-headers"),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--return-tokens-as-token-ids"),
)
PING = {"type": "function", "function": {"name": "ping", "parameters": {"type": "object"}}}
CALLS = (
    '<tool_call>\n{"name": "ping", "arguments": {"host": "a", "times": 2}}\n</tool_call>\n'
    '<tool_call>\n{"name": "ping", "arguments": {"host": "b"}}\n</tool_call>'
)


@pytest.fixture(scope="module")
def ask() -> Iterator[Asked]:
    with serving(*FLAGS) as server:
        yield Asked(server, "alpha")


def chunks(ask: Asked, **fields: Any) -> list[dict[str, Any]]:
    events = ask.events(CHAT, messages=[{"role": "user", "content": "Go."}], **fields)
    return [choice for event in events for choice in event["choices"]]


def test_cached_tokens_are_whole_blocks_of_the_prompt(ask: Asked) -> None:
    fields = {"prompt": list(range(4000, 4100)), "max_tokens": 1, "cache_salt": "counted"}
    first = ask.reply(TEXT, **fields)["usage"]
    assert (first["prompt_tokens"], first["prompt_tokens_details"]) == (100, {"cached_tokens": 0})
    *_, last = ask.events(TEXT, **fields, stream_options={"include_usage": True})
    cached = last["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert last["usage"]["prompt_tokens"] == 100
    assert (0 < cached < 100, cached % 16) == (True, 0)


def test_calls_are_read_from_the_text_streamed_or_not(ask: Asked) -> None:
    fields = {"tools": [PING], "max_tokens": 90, **forced(CALLS)}
    whole = ask.chat("Go.", **fields)
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in whole["message"]["tool_calls"]]
    assert calls == [("ping", '{"host": "a", "times": 2}'), ("ping", '{"host": "b"}')]
    assert (whole["message"]["content"], whole["finish_reason"]) == (None, "tool_calls")
    parts = [part for choice in chunks(ask, **fields) for part in choice["delta"].get("tool_calls", ())]
    named = [part for part in parts if "name" in part["function"]]
    assert [(part["index"], part["function"]["name"]) for part in named] == [(0, "ping"), (1, "ping")]
    assert len({part["id"] for part in named}) == 2
    for index, (_, arguments) in enumerate(calls):
        streamed = [part["function"].get("arguments", "") for part in parts if part["index"] == index]
        assert "".join(streamed) == arguments


def test_tool_choice_none_leaves_the_text_and_names_must_exist(ask: Asked) -> None:
    choice = ask.chat("Go.", tools=[PING], tool_choice="none", max_tokens=90, **forced(CALLS))
    assert (choice["message"]["content"], choice["finish_reason"]) == (CALLS, "stop")
    assert ask.chat("Go.", tool_choice="none", max_tokens=1)["message"]["role"] == "assistant"
    named = {"type": "function", "function": {"name": "other"}}
    for fields in ({"tool_choice": named}, {"tools": [PING], "tool_choice": named}):
        assert ask.post(CHAT, messages=[{"role": "user", "content": "Go."}], **fields)[0] == 400


def test_turns_of_tools_are_part_of_the_prompt(ask: Asked) -> None:
    def turns(arguments: Any, **content: Any) -> list[dict[str, Any]]:
        call = {"id": "c1", "type": "function", "function": {"name": "ping", "arguments": arguments}}
        result = {"role": "tool", "tool_call_id": "c1", "content": "a long result of that call"}
        return [*messages, {"role": "assistant", "tool_calls": [call], **content}, result]

    messages = [{"role": "user", "content": "Go."}]
    short = len(ask.reply("/tokenize", messages=messages)["tokens"])
    for taken in (turns("{}", content=None), turns("{}"), turns("null")):
        assert ask.reply(CHAT, messages=taken, max_tokens=1)["usage"]["prompt_tokens"] > short
    assert ask.post(CHAT, messages=turns("{not json"), max_tokens=1)[0] == 400


def test_every_served_name_answers_and_others_do_not(ask: Asked) -> None:
    cards = ask.server.request("GET", "/v1/models")[1]["data"]
    assert [(card["id"], card["object"], card["root"]) for card in cards] == [
        ("alpha", "model", MODEL),
        ("beta", "model", MODEL),
    ]
    assert Asked(ask.server, "beta").reply(TEXT, prompt="Hi", max_tokens=1)["model"] == "beta"
    status, body = Asked(ask.server, "gamma").post(TEXT, prompt="Hi")
    assert (status, body["error"]["param"]) == (404, "model")
    assert ask.server.request("POST", TEXT, {"prompt": "Hi", "max_tokens": 1})[1]["model"] == "alpha"


def test_tokens_are_named_by_their_ids_where_the_server_says_so(ask: Asked) -> None:
    choice = ask.text("Hi", max_tokens=2, logprobs=0, return_token_ids=True, ignore_eos=True)
    assert choice["logprobs"]["tokens"] == [f"token_id:{token}" for token in choice["token_ids"]]


@pytest.mark.long
def test_prompts_around_the_edges_of_chunks_give_the_tokens_of_one_step(ask: Asked) -> None:
    prompts = [list(range(5000, 5000 + length)) for length in (63, 64, 65, 128, 129)]
    fields: dict[str, Any] = {"max_tokens": 4, "ignore_eos": True}
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, prompt_logprobs=1)
    with LLM(dtype="float32", max_model_len=2048, kv_cache_memory_bytes=1 << 28) as llm:
        outputs = llm.generate(prompts, params, use_tqdm=False)
    for prompt, output in zip(prompts, outputs, strict=True):
        choice = ask.text(prompt, **fields, prompt_logprobs=1, return_token_ids=True)
        assert choice["token_ids"] == list(output.outputs[0].token_ids)
        assert len(choice["prompt_logprobs"]) == len(prompt)


def test_stream_goes_on_while_a_long_prompt_is_read(ask: Asked) -> None:
    is_running, is_read = Event(), Event()

    def watch() -> int:
        num_meanwhile = 0
        body = {"prompt": "Once", "temperature": 0, "max_tokens": 400, "ignore_eos": True, "n": 1}
        for number, _ in enumerate(ask.server.stream(TEXT, body)):
            if number == 2:
                is_running.set()
            num_meanwhile += is_running.is_set() and not is_read.is_set()
            if is_read.is_set():
                break
        return num_meanwhile

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        assert is_running.wait(60)
        ask.text([504] * 1200, max_tokens=1)
        is_read.set()
        assert watching.result() >= 10


@pytest.mark.long
def test_request_that_matters_more_goes_first() -> None:
    flags = ("--scheduling-policy", "priority", "--max-num-seqs", "1")
    with serving("--dtype", "float32", "--max-model-len", "2048", *flags) as server, ThreadPoolExecutor(2) as pool:
        ask, order = Asked(server), list[str]()

        def finish(name: str, priority: int) -> str:
            text: str = ask.text("Once upon", max_tokens=6, ignore_eos=True, priority=priority)["text"]
            order.append(name)
            return text

        first = server.stream(TEXT, {"prompt": "Once", "max_tokens": 150, "ignore_eos": True, "priority": 0})
        next(first)
        later = pool.submit(finish, "later", 10)
        deadline = time.monotonic() + 60
        while num_waiting(server) < 1 and time.monotonic() < deadline:
            time.sleep(0.1)
        sooner = pool.submit(finish, "sooner", -5)
        assert sooner.result(60) == later.result(60)
        assert order == ["sooner", "later"]
        assert sum(1 for _ in first) > 0


def num_waiting(server: Server) -> float:
    lines = [line for line in server.exposition().splitlines() if line.startswith("vllm:num_requests_waiting{")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def test_offline_outputs_are_in_the_order_of_their_prompts_with_their_own_parameters() -> None:
    prompts = ["Count: " + "x " * number for number in (30, 1, 12, 4)]
    params = [SamplingParams(temperature=0, max_tokens=length, ignore_eos=True) for length in (2, 20, 1, 9)]
    with LLM(dtype="float32", max_model_len=512, kv_cache_memory_bytes=1 << 27) as llm:
        outputs = llm.generate(prompts, params, use_tqdm=False)
        with pytest.raises(ValueError, match="4"):
            llm.generate(prompts, params[:3], use_tqdm=False)
    assert [output.prompt for output in outputs] == prompts
    assert [len(output.outputs[0].token_ids) for output in outputs] == [2, 20, 1, 9]
    assert all(output.finished for output in outputs)

"""Whole replies: the same keys in the same order as a live vLLM sends, and the right values in them."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_engine import ERROR_TOKEN, FakeEngine
from http_app import MODEL, Served, served, tokenizer
from reply_shape import shape_of

from vllm_obs.engine.messages import EngineCoreRequest
from vllm_obs.server.config import ServerConfig
from vllm_obs.telemetry.records import HttpRequestEnded, RequestSubmitted

SHAPES = json.loads((Path(__file__).parent / "reply_shapes.json").read_text())
"""Recorded replies with every value replaced by its kind."""

CHAT = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}
PARIS = [504, 3575, 282, 4649, 314, 7042, 30, 2]
"""The capital of France is Paris. <|im_end|>"""


def in_order(value: Any) -> str:
    return json.dumps(value)


def ask(path: str, body: Any, script: Sequence[int] = PARIS, server: ServerConfig | None = None) -> Any:
    async def scenario() -> Any:
        async with served(FakeEngine(lambda request: script), server) as app:
            reply = await app.post(path, body)
            assert reply.status_code == 200, reply.text
            assert reply.headers["content-type"] == "application/json"
            return reply.json()

    return asyncio.run(scenario())


def words(text: str) -> list[int]:
    return tokenizer().encode(text, add_special_tokens=False)


@pytest.mark.parametrize(
    ("name", "path", "body"),
    [
        ("chat", "/v1/chat/completions", {**CHAT, "max_tokens": 12}),
        ("chat_logprobs", "/v1/chat/completions", {**CHAT, "max_tokens": 12, "logprobs": True, "top_logprobs": 3}),
        ("chat_stop", "/v1/chat/completions", {**CHAT, "stop": ["capital"]}),
        ("comp", "/v1/completions", {"prompt": "The capital of France is", "max_tokens": 8}),
        ("comp_logprobs", "/v1/completions", {"prompt": "The capital of France is", "logprobs": 2}),
        ("comp_echo_lp", "/v1/completions", {"prompt": "The capital of France is", "echo": True, "logprobs": 1}),
        ("comp_list", "/v1/completions", {"prompt": ["Hello", "The sky is"], "n": 2, "temperature": 0.7}),
        ("comp_tokens", "/v1/completions", {"prompt": [504, 3575, 282, 4649, 314], "max_tokens": 8}),
        ("tokenize", "/tokenize", {"prompt": "Hello 123"}),
        ("detokenize", "/detokenize", {"tokens": [504, 3575]}),
    ],
)
def test_reply_has_the_keys_of_vllm_in_their_order(name: str, path: str, body: dict[str, Any]) -> None:
    assert in_order(shape_of(ask(path, {"model": MODEL, **body}))) == in_order(SHAPES[name])


def test_chat_reply_says_what_was_generated() -> None:
    reply = ask("/v1/chat/completions", {**CHAT, "max_tokens": 12})
    assert reply["model"] == MODEL
    assert reply["id"].startswith("chatcmpl-")
    assert reply["choices"][0]["message"]["content"] == "The capital of France is Paris."
    assert reply["choices"][0]["finish_reason"] == "stop"
    assert reply["choices"][0]["stop_reason"] is None
    assert reply["usage"]["prompt_tokens"] == 37
    assert reply["usage"]["completion_tokens"] == 8
    assert reply["usage"]["total_tokens"] == 45


def test_stop_string_cuts_the_text_and_is_named() -> None:
    choice = ask("/v1/chat/completions", {**CHAT, "stop": ["capital"]})["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"], choice["stop_reason"]) == (
        "The ",
        "stop",
        "capital",
    )


def test_chat_logprobs_are_one_entry_a_token_with_its_bytes() -> None:
    reply = ask("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 2})
    content = reply["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == [
        "The",
        " capital",
        " of",
        " France",
        " is",
        " Paris",
        ".",
        "<|im_end|>",
    ]
    assert content[1]["bytes"] == list(b" capital")
    assert [len(entry["top_logprobs"]) for entry in content] == [2] * 8
    assert content[0]["top_logprobs"][0]["token"] == "The"


def test_chat_logprobs_without_top_logprobs_have_no_alternatives() -> None:
    content = ask("/v1/chat/completions", {**CHAT, "logprobs": True})["choices"][0]["logprobs"]["content"]
    assert len(content) == 8
    assert all(entry["top_logprobs"] == [] for entry in content)


def test_what_asks_for_nothing_is_taken_without_what_it_belongs_to() -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "top_logprobs": 0, "stream_options": {}}
    choice = ask("/v1/chat/completions", body)["choices"][0]
    assert choice["logprobs"] is None


def test_completion_logprobs_zero_is_the_sampled_token_only() -> None:
    logprobs = ask("/v1/completions", {"prompt": "Hi", "logprobs": 0})["choices"][0]["logprobs"]
    assert logprobs["tokens"][:3] == ["The", " capital", " of"]
    assert logprobs["text_offset"][:3] == [0, 3, 11]
    assert logprobs["top_logprobs"][:2] == [{"The": -0.5}, {" capital": -0.5}]


def test_echo_puts_the_prompt_and_its_logprobs_first() -> None:
    reply = ask(
        "/v1/completions", {"prompt": "The capital of France is", "echo": True, "logprobs": 1, "max_tokens": 2}
    )
    choice = reply["choices"][0]
    assert choice["text"] == "The capital of France isThe capital"
    assert choice["logprobs"]["tokens"] == ["The", " capital", " of", " France", " is", "The", " capital"]
    assert choice["logprobs"]["token_logprobs"] == [None] + [-0.5] * 6
    assert choice["logprobs"]["top_logprobs"][0] is None
    assert choice["logprobs"]["text_offset"] == [0, 3, 11, 14, 21, 24, 27]
    assert choice["prompt_logprobs"][:2] == [
        None,
        {"3575": {"logprob": -0.5, "rank": 1, "decoded_token": " capital"}},
    ]


@pytest.mark.parametrize("max_tokens", [0, 2])
def test_echo_of_one_token_has_as_many_logprobs_as_tokens(max_tokens: int) -> None:
    body = {"prompt": "The", "echo": True, "logprobs": 1, "max_tokens": max_tokens}
    choice = ask("/v1/completions", body)["choices"][0]
    told = choice["logprobs"]
    assert told["tokens"] == ["The", "The", " capital"][: 1 + max_tokens]
    assert told["token_logprobs"] == [None, -0.5, -0.5][: 1 + max_tokens]
    assert len(told["top_logprobs"]) == len(told["text_offset"]) == 1 + max_tokens
    assert choice["prompt_logprobs"] == [None]


def test_echo_of_token_ids_is_their_text() -> None:
    reply = ask("/v1/completions", {"prompt": [504, 3575], "echo": True, "max_tokens": 1})
    assert reply["choices"][0]["text"] == "The capitalThe"


def test_echo_with_max_tokens_zero_scores_the_prompt_and_counts_no_completion_token() -> None:
    reply = ask("/v1/completions", {"prompt": "Your answer: Yes", "echo": True, "logprobs": 1, "max_tokens": 0})
    choice = reply["choices"][0]
    assert choice["text"] == "Your answer: Yes"
    assert choice["logprobs"]["tokens"] == ["Your", " answer", ":", " Yes"]
    assert choice["logprobs"]["token_logprobs"] == [None, -0.5, -0.5, -0.5]
    assert choice["finish_reason"] == "length"
    assert reply["usage"]["completion_tokens"] == 0
    assert reply["usage"]["prompt_tokens"] == 4


def test_several_prompts_times_n_are_numbered_prompt_by_prompt() -> None:
    def script(request: EngineCoreRequest) -> list[int]:
        return words(f" {len(request.prompt_token_ids)} {request.sampling.sequence_index}")

    async def scenario() -> Any:
        async with served(FakeEngine(script)) as app:
            return (await app.post("/v1/completions", {"prompt": ["Hello", "The sky is"], "n": 2})).json()

    reply = asyncio.run(scenario())
    assert [(c["index"], c["text"]) for c in reply["choices"]] == [
        (0, " 1 0"),
        (1, " 1 1"),
        (2, " 3 0"),
        (3, " 3 1"),
    ]
    assert reply["usage"]["prompt_tokens"] == 4
    assert reply["usage"]["completion_tokens"] == 4 * len(words(" 1 0"))


def test_return_token_ids_gives_prompt_and_completion_ids() -> None:
    completion = ask("/v1/completions", {"prompt": "Hello", "return_token_ids": True})["choices"][0]
    assert (completion["prompt_token_ids"], completion["token_ids"]) == (words("Hello"), PARIS)
    chat = ask("/v1/chat/completions", {**CHAT, "return_token_ids": True})
    assert len(chat["prompt_token_ids"]) == 37
    assert chat["choices"][0]["token_ids"] == PARIS


def test_tokens_can_be_named_by_their_ids() -> None:
    body = {"prompt": "Hi", "logprobs": 1, "return_tokens_as_token_ids": True, "max_tokens": 2}
    assert ask("/v1/completions", body)["choices"][0]["logprobs"]["tokens"] == ["token_id:504", "token_id:3575"]


def test_truncate_prompt_tokens_keeps_the_last_ones() -> None:
    body = {"prompt": list(range(1000, 1040)), "truncate_prompt_tokens": 5, "return_token_ids": True, "echo": True}
    reply = ask("/v1/completions", {**body, "max_tokens": 1})
    assert reply["choices"][0]["prompt_token_ids"] == list(range(1035, 1040))
    assert reply["choices"][0]["text"] == tokenizer().decode([*range(1035, 1040), 504])
    assert reply["usage"]["prompt_tokens"] == 5


def test_max_completion_tokens_wins_and_null_is_the_default() -> None:
    both = ask("/v1/chat/completions", {**CHAT, "max_tokens": 6, "max_completion_tokens": 3})
    assert both["usage"]["completion_tokens"] == 3
    default = ask("/v1/completions", {"prompt": "Hi", "max_tokens": None, "n": None, "stop": None}, [30] * 100)
    assert default["usage"]["completion_tokens"] == 16
    whole = ask("/v1/chat/completions", {**CHAT, "max_tokens": None}, [30] * 3000)
    assert whole["usage"]["total_tokens"] == 2048


def test_every_sampling_field_reaches_the_engine() -> None:
    fields = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "seed": 11,
        "presence_penalty": 0.25,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.5,
        "min_tokens": 3,
        "stop_token_ids": [9],
        "logit_bias": {"5": 2.5},
        "allowed_token_ids": [5, 9, 30],
    }

    async def scenario() -> tuple[EngineCoreRequest, Served]:
        async with served(FakeEngine(lambda request: [30])) as app:
            body = {
                "prompt": "Hi",
                "priority": -5,
                "cache_salt": "mine",
                "ignore_eos": True,
                "user": "me",
                **fields,
            }
            assert (await app.post("/v1/completions", body)).status_code == 200
            return app.engine.added[0], app

    request, app = asyncio.run(scenario())
    spec = request.sampling._asdict()
    expected: dict[str, Any] = fields | {
        "stop_token_ids": (9,),
        "logit_bias": ((5, 2.5),),
        "allowed_token_ids": (5, 9, 30),
    }
    assert {name: spec[name] for name in expected} == expected
    assert (request.priority, request.cache_salt, spec["eos_token_ids"]) == (-5, "mine", ())
    submitted = app.recorder.of(RequestSubmitted)
    ended = app.recorder.of(HttpRequestEnded)
    assert len(submitted) == len(ended) == 1
    assert submitted[0].http_id == ended[0].http_id


def test_model_may_be_left_out_and_unknown_fields_are_ignored() -> None:
    assert ask("/v1/completions", {"prompt": "Hi", "store": True, "never_heard_of": 1})["model"] == MODEL


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "Hi"}),
        ("/v1/chat/completions", CHAT),
        ("/v1/embeddings", {"input": "Hi"}),
        ("/tokenize", {"prompt": "Hi"}),
    ],
)
def test_a_model_has_to_be_named_where_the_server_says_so(path: str, body: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with served(FakeEngine(lambda request: PARIS), ServerConfig(require_model=True)) as app:
            reply = await app.post(path, body)
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, "model")
            assert (await app.post("/tokenize", {"model": MODEL, "prompt": "Hi"})).status_code == 200

    asyncio.run(scenario())


def test_text_parts_are_joined_by_line_breaks_and_developer_is_system() -> None:
    parts = [{"type": "text", "text": "What is"}, {"type": "text", "text": "2+2?"}]
    joined = ask("/tokenize", {"messages": [{"role": "user", "content": "What is\n2+2?"}]})
    assert ask("/tokenize", {"messages": [{"role": "user", "content": parts}]}) == joined
    assert joined["count"] == 37
    hi = {"role": "user", "content": "hi"}
    told = [
        ask("/tokenize", {"messages": [{"role": role, "content": "Be brief."}, hi]})
        for role in ("system", "developer")
    ]
    assert told[0] == told[1]


def test_tokenize_of_messages_is_the_prompt_of_a_chat() -> None:
    reply = ask("/tokenize", {"messages": [{"role": "user", "content": "hi"}], "return_token_strs": True})
    assert reply["count"] == 31
    assert reply["max_model_len"] == 2048
    assert reply["tokens"][:3] == [1, 9690, 198]
    assert reply["token_strs"][:3] == ["<|im_start|>", "system", "\n"]


def test_special_tokens_spelled_in_content_stay_text() -> None:
    plain = ask("/tokenize", {"messages": [{"role": "user", "content": "hi"}]})["tokens"]
    spelled = ask("/tokenize", {"messages": [{"role": "user", "content": "hi<|im_end|>"}]})["tokens"]
    assert spelled.count(2) == plain.count(2)


def test_tokenize_and_detokenize_are_inverse() -> None:
    text = "Hello world 🌶\x00"
    tokens = ask("/tokenize", {"prompt": text})["tokens"]
    assert ask("/detokenize", {"tokens": tokens}) == {"prompt": text}


def test_prompt_tokens_details_are_told_where_enabled() -> None:
    server = ServerConfig(enable_prompt_tokens_details=True)
    assert ask("/v1/completions", {"prompt": "Hi"}, server=server)["usage"]["prompt_tokens_details"] == {
        "cached_tokens": 0
    }


def test_what_is_null_is_left_out_where_asked_for() -> None:
    server = ServerConfig(omit_empty_fields=True)
    chat = ask("/v1/chat/completions", CHAT, server=server)
    text = ask("/v1/completions", {"prompt": "The"}, server=server)
    for reply in (chat, text):
        assert reply.keys() == {"id", "object", "created", "model", "choices", "system_fingerprint", "usage"}
        assert reply["usage"].keys() == {"prompt_tokens", "total_tokens", "completion_tokens"}
    answer = "The capital of France is Paris."
    message = {"role": "assistant", "content": answer, "refusal": None, "annotations": []}
    assert chat["choices"] == [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}]
    assert text["choices"] == [{"index": 0, "text": answer, "logprobs": None, "finish_reason": "stop"}]


def test_sequence_that_fails_is_a_500_without_the_engines_words() -> None:
    async def scenario() -> Any:
        async with served(FakeEngine(lambda request: [504, ERROR_TOKEN])) as app:
            return await app.post("/v1/completions", {"prompt": ["Hi", "Ho"]}), app.engine

    reply, engine = asyncio.run(scenario())
    assert reply.status_code == 500
    assert reply.json()["error"]["reason"] == "internal_error"
    assert "secret" not in reply.text
    assert engine.num_running == 0

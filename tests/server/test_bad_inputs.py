"""Bad bodies: each row of the reliability table gets its status, reason and field, and the engine nothing."""

import asyncio
import json
import time
from typing import Any, get_args

import httpx
import pytest
from fake_engine import FakeEngine
from http_app import Served, served

from vllm_obs.engine.errors import Reason
from vllm_obs.server.config import Limits, ServerConfig

TEXT = "/v1/completions"
CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}
HI = {"role": "user", "content": "hi"}
REASONS = get_args(Reason)

Row = tuple[str, str, Any, int, str, str | None]


def text(row: str, fields: Any, reason: str = "invalid_value", param: str | None = None, status: int = 400) -> Row:
    return row, TEXT, {"prompt": "Hi", "max_tokens": 4, **fields}, status, reason, param or next(iter(fields))


def chat(row: str, fields: Any, reason: str = "invalid_value", param: str | None = None, status: int = 400) -> Row:
    return row, CHAT, {"messages": [HI], "max_tokens": 4, **fields}, status, reason, param or next(iter(fields))


def message(row: str, content: Any, param: str, reason: str = "invalid_value") -> Row:
    return row, CHAT, {"messages": [HI, content]}, 400, reason, param


def raw(row: str, body: bytes, reason: str, param: str | None = None, path: str = TEXT) -> Row:
    return row, path, body, 400, reason, param


def call_with(arguments: str) -> dict[str, Any]:
    return {"id": "x", "type": "function", "function": {"name": "f", "arguments": arguments}}


CALL = call_with("{}")
NESTED = b'{"prompt":"Hi","x":%b%b}'

ROWS: list[Row] = [
    raw("H1", b"", "invalid_json"),
    raw("H1", b"  \n", "invalid_json"),
    raw("H1", b'{"prompt":', "invalid_json"),
    raw("H1", b"[1,2]", "invalid_body"),
    raw("H1", b"null", "invalid_body"),
    raw("H1", b"7", "invalid_body"),
    raw("H1", b'{"prompt":"a"} {}', "invalid_json"),
    raw("H3", b"{}", "empty_prompt", "prompt"),
    text("H3", {"prompt": ""}, "empty_prompt"),
    text("H3", {"prompt": []}, "empty_prompt"),
    text("H3", {"prompt": [[]]}, "empty_prompt"),
    text("H3", {"prompt": ["a", ""]}, "empty_prompt"),
    text("H3", {"prompt": None}, "empty_prompt"),
    raw("H3", b"{}", "empty_prompt", "messages", CHAT),
    chat("H3", {"messages": []}, "empty_prompt"),
    text("H4", {"model": "nope"}, "model_not_found", status=404),
    chat("H4", {"model": "nope"}, "model_not_found", status=404),
    text("H4", {"model": ""}),
    text("H4", {"model": "m" * 1_000_000}),
    text("H4", {"model": 5}),
    *(text("H5", {"n": n}) for n in (0, -1)),
    *(text("H5", {"n": n}, "too_many_sequences") for n in (1025, 16385, 10**9)),
    raw("H5", b'{"prompt":"Hi","n":' + b"9" * 400 + b"}", "invalid_value", "n"),
    raw("H5", b'{"prompt":"Hi","n":' + b"9" * 9000 + b"}", "invalid_value", "n"),
    *(text("H6", {"n": n}) for n in (True, "3", 3.5, [], {})),
    *(text("H6", {name: "yes"}) for name in ("stream", "echo", "ignore_eos", "return_token_ids")),
    text("H6", {"stream": 1}),
    *(text("H7", {"max_tokens": n}) for n in (0, -1, 2**31, 2**63, 2**64, "5", 1.5)),
    *(chat("H7", {name: n}) for name in ("max_tokens", "max_completion_tokens") for n in (0, True)),
    chat("H7", {"max_tokens": -1}),
    chat("H7", {"min_tokens": 5000, "max_tokens": None}),
    *(text("H8", {"temperature": t}) for t in (-1, 3, "hot", True)),
    *(text("H8", {"top_p": p}) for p in (0, 2, -0.1, "x")),
    *(
        raw("H8", b'{"prompt":"Hi","%b":%b}' % (name, value), "invalid_value", name.decode())
        for name in (b"temperature", b"presence_penalty", b"repetition_penalty", b"min_p")
        for value in (b"NaN", b"1e999", b"-Infinity")
    ),
    raw("H8", b'{"prompt":"Hi","unknown":NaN}', "invalid_json"),
    text("H8", {"top_k": -2}),
    text("H8", {"min_p": 1.5}),
    text("H8", {"presence_penalty": 3}),
    text("H8", {"frequency_penalty": -3}),
    text("H8", {"repetition_penalty": 0}),
    *(text("H9", {name: n}) for name in ("logprobs", "prompt_logprobs") for n in (-1, 10**6, True, "1")),
    chat("H9", {"logprobs": 5}),
    chat("H9", {"logprobs": True, "top_logprobs": 10**6}, param="top_logprobs"),
    chat("H9", {"logprobs": True, "top_logprobs": -1}, param="top_logprobs"),
    chat("H9", {"top_logprobs": 2}),
    *(
        text("H10", {"prompt": prompt})
        for prompt in (
            [-1],
            [49152],
            [2**31],
            [2**64],
            [1.5],
            [True],
            [1, "a"],
            ["a", 1],
            [[1], "a"],
            [[[1]]],
            5,
            {},
        )
    ),
    *(text("H11", {name: [49152]}) for name in ("stop_token_ids", "allowed_token_ids")),
    text("H11", {"stop_token_ids": [-1]}),
    text("H11", {"stop_token_ids": ["1"]}),
    text("H11", {"allowed_token_ids": []}),
    *(
        text("H11", {"logit_bias": bias})
        for bias in ({"49152": 1}, {"-1": 1}, {"x": 1}, {"1": "x"}, [1], {"1": True})
    ),
    text("H11", {"logit_bias": {str(n): "x" for n in range(20_000)}}),
    text("H11", {"bad_words": [5]}),
    text("H11", {"bad_words": [""]}),
    *(text("H12", {"stop": stop}) for stop in ("", [""], "x" * 10_000_000, ["x"] * 10_000, [5], 5, {})),
    raw("H14", b'{"prompt":"\xff"}', "invalid_json"),
    raw("H14", '{"prompt":"Hi"}'.encode("utf-16"), "invalid_json"),
    raw("H14", b'\xef\xbb\xbf{"prompt":"Hi"}', "invalid_json"),
    raw("H14", b'{"prompt":"\\ud800"}', "invalid_json"),
    raw("H14", b'{"prompt":"Hi\x01"}', "invalid_json"),
    raw("H16", NESTED % (b"[" * 100_000, b"]" * 100_000), "too_deep"),
    raw("H16", NESTED % (b"[" * 100_000, b""), "too_deep"),
    raw("H16", NESTED % (b'{"a":' * 900, b"1" + b"}" * 900), "too_deep"),
    raw("H16", NESTED % (b"[" * 64, b"]" * 64), "too_deep"),
    text("H20", {"prompt": "word " * 2048, "max_tokens": 1}, "context_length_exceeded"),
    text("H20", {"prompt": [30] * 2048, "max_tokens": 1}, "context_length_exceeded"),
    text("H20", {"prompt": [30] * 2040, "max_tokens": 9}, "context_length_exceeded", "max_tokens"),
    text("H21", {"prompt": "a" * 1_000_000}, "context_length_exceeded"),
    text("H21", {"prompt": "\U0001f468\u200d" * 500_000}, "context_length_exceeded"),
    chat("H21", {"messages": [{"role": "user", "content": "a" * 1_000_000}]}, "context_length_exceeded"),
    text("H22", {"prompt": ["x"] * 10_000}, "too_many_sequences"),
    text("H22", {"prompt": ["x"] * 40, "allowed_token_ids": list(range(32_768))}, "too_many_sequences"),
    text("H22", {"prompt": ["x"] * 100, "n": 11}, "too_many_sequences", "n"),
    *(text("H31", {"structured_outputs": {"regex": regex}}, "unsupported") for regex in ("[", "(?=a)b", "(a)\\1")),
    *(text("H31", {"structured_outputs": {"regex": regex}}) for regex in ("", "a" * 1_000_000)),
    text("H31", {"structured_outputs": {"json": {"$ref": "#"}}}, "unsupported"),
    text("H31", {"structured_outputs": {"json": {"$ref": "#/$defs/none"}}}, "unsupported"),
    text("H31", {"structured_outputs": {"json": {"uniqueItems": True}}}, "unsupported"),
    text("H31", {"structured_outputs": {"json": {"enum": ["x" * 1_000_000]}}}),
    text("H31", {"structured_outputs": {"json": "{"}}),
    text("H31", {"structured_outputs": {"grammar": " "}}, "unsupported"),
    text("H31", {"structured_outputs": {"grammar": ""}}),
    *(
        text("H31", {"structured_outputs": wanted})
        for wanted in ({}, {"choice": []}, {"regex": "a", "choice": ["b"]})
    ),
    text("H31", {"structured_outputs": {"choice": "abc"}}, param="structured_outputs.choice"),
    text(
        "H31",
        {"structured_outputs": {"whitespace_pattern": " "}},
        "unsupported",
        "structured_outputs.whitespace_pattern",
    ),
    chat("H31", {"response_format": {"type": "regex", "regex": "(a+)+b"}}, param="response_format.type"),
    chat("H31", {"response_format": {"type": "json_schema"}}, param="response_format.json_schema"),
    chat(
        "H31",
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}}},
        "unsupported",
    ),
    chat("H31", {"response_format": {"type": "json_object"}, "guided_regex": "a"}, param="guided_regex"),
    *(text("H31", {name: "x"}, "unsupported") for name in ("suffix", "prompt_embeds", "logits_processors")),
    *(text("H31", {name: {"a": 1}}, "unsupported") for name in ("kv_transfer_params", "vllm_xargs")),
    text("H31", {"use_beam_search": True}, "unsupported"),
    chat("H32", {"chat_template": "{{ messages }}"}, "unsupported"),
    *(
        chat("H32", {"chat_template_kwargs": {name: True}}, "unsupported")
        for name in ("self", "tokenize", "messages", "add_generation_prompt", "bos_token", "chat_template")
    ),
    chat("H32", {"chat_template_kwargs": {"x": "y" * 20_000}}),
    chat("H32", {"chat_template_kwargs": {"a b": 1}}),
    chat("H32", {"chat_template_kwargs": [1]}),
    chat("H32", {"add_generation_prompt": True, "continue_final_message": True}, param="continue_final_message"),
    message("H33", {"role": "root", "content": "x"}, "messages[1].role"),
    message("H33", {"content": "x"}, "messages[1].role"),
    message("H33", {"role": "user", "content": 5}, "messages[1].content"),
    message("H33", {"role": "user", "content": [5]}, "messages[1].content"),
    message("H33", {"role": "user", "content": [{"type": "bogus"}]}, "messages[1].content"),
    message("H33", {"role": "user", "content": [{"type": "text", "text": 5}]}, "messages[1].content"),
    message("H33", {"role": "user"}, "messages"),
    message("H33", {"role": "assistant", "tool_calls": [{"id": "x"}]}, "messages[1].tool_calls[0].function"),
    message("H33", {"role": "assistant", "tool_calls": [CALL] * 129}, "messages[1].tool_calls"),
    *(
        message("H33", {"role": "assistant", "tool_calls": [call_with(arguments)]}, "messages")
        for arguments in ('{"city":', "[1]", "7", "{" * 100)
    ),
    chat("H33", {"messages": [HI] * 100_000}),
    chat("H33", {"messages": "hi"}),
    chat("H33", {"messages": [7]}),
    *(chat("H33", {"tool_choice": choice}) for choice in ("never", 5, [], True)),
    chat(
        "H33",
        {
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"pattern": "["}}}],
            "tool_choice": "required",
        },
        "unsupported",
        "tools",
    ),
    *(
        message(
            "H34",
            {"role": "user", "content": [{"type": kind, kind: {"url": url}}]},
            "messages[1].content",
            "unsupported",
        )
        for kind, url in (
            ("image_url", "http://169.254.169.254/"),
            ("image_url", "file:///etc/passwd"),
            ("image_url", "http://a\\@b"),
            ("input_audio", "data:,x"),
            ("video_url", "http://127.0.0.1/"),
        )
    ),
    *(text("H35", {"cache_salt": salt}) for salt in ("", "x" * 10_000, "a\nb", "sält", 5)),
    *(text("H35", {"priority": priority}) for priority in (10**9, -(10**9), True, "1")),
    *(text("H35", {"seed": seed}) for seed in (2**70, -(2**70), "1", 1.5)),
    text("H35", {"user": "x" * 1_000_000}),
    text("H42", {"stream_options": {"include_usage": True}}),
    text("H42", {"stream": True, "stream_options": 5}, param="stream_options"),
    text(
        "H42", {"stream": True, "stream_options": {"include_usage": "yes"}}, param="stream_options.include_usage"
    ),
    text("H42", {"stream": True, "prompt_logprobs": 1}, param="prompt_logprobs"),
    text("H42", {"best_of": 1, "n": 2}),
    text("H42", {"best_of": 3}, "unsupported"),
    ("tokenize", "/tokenize", {"messages": []}, 400, "empty_prompt", "messages"),
    ("tokenize", "/tokenize", {"prompt": 5}, 400, "invalid_value", "prompt"),
    ("tokenize", "/tokenize", {}, 400, "invalid_value", "prompt"),
    ("tokenize", "/tokenize", {"prompt": "x", "model": "nope"}, 404, "model_not_found", "model"),
    *(
        ("detokenize", "/detokenize", {"tokens": tokens}, 400, "invalid_value", "tokens")
        for tokens in ([-1], [49152], [2**70], ["x"], "x", [True], [30] * 1_000_001)
    ),
]


def check_error(reply: httpx.Response, status: int, reason: str, param: str | None) -> None:
    assert (reply.status_code, reply.headers["content-type"]) == (status, "application/json"), reply.text
    error = reply.json()["error"]
    assert list(error) == ["message", "type", "param", "code", "reason"]
    assert (error["code"], error["reason"], error["param"]) == (status, reason, param), reply.text
    assert error["type"] == {400: "BadRequestError", 404: "NotFoundError"}[status]
    assert reason in REASONS
    assert len(reply.content) <= 4096
    assert reply.headers["x-request-id"]
    for run in ("m" * 65, "x" * 65, "9" * 65, "a" * 65):
        assert run not in reply.text


async def send(app: Served, path: str, body: Any) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await app.client.post(path, content=content, headers=JSON)


@pytest.fixture(scope="module")
def replies() -> list[tuple[httpx.Response, float]]:
    """The replies to all rows, in order, from one application that must still serve afterwards."""

    async def scenario() -> list[tuple[httpx.Response, float]]:
        async with served(FakeEngine(lambda request: [30])) as app:
            answered = []
            for _, path, body, *_ in ROWS:
                begun = time.monotonic()
                reply = await send(app, path, body)
                answered.append((reply, time.monotonic() - begun))
            assert app.engine.added == []
            assert app.api.num_open == 0
            assert (await app.post(TEXT, {"prompt": "Hi"})).status_code == 200
            return answered

    return asyncio.run(scenario())


@pytest.mark.parametrize("index", range(len(ROWS)), ids=[f"{row[0]}-{index}" for index, row in enumerate(ROWS)])
def test_bad_body_is_refused_by_name(index: int, replies: list[tuple[httpx.Response, float]]) -> None:
    _, _, _, status, reason, param = ROWS[index]
    check_error(replies[index][0], status, reason, param)


def test_no_bad_body_takes_long(replies: list[tuple[httpx.Response, float]]) -> None:
    slowest = max(range(len(ROWS)), key=lambda index: replies[index][1])
    assert replies[slowest][1] < 9, ROWS[slowest][:2]


def ask(path: str, server: ServerConfig | None = None, **request: Any) -> httpx.Response:
    async def scenario() -> httpx.Response:
        async with served(FakeEngine(lambda request: [30]), server) as app:
            return await app.client.post(path, **request)

    return asyncio.run(scenario())


def test_twenty_thousand_errors_are_told_in_ten_lines_at_most() -> None:
    body = {"messages": [{"role": 1, "content": 2}] * 16_000, "n": "x", "seed": "x", "top_p": "x"}
    body |= {f"stop_token_ids{n}": "x" for n in range(4000)}
    reply = ask(CHAT, json=body)
    message = reply.json()["error"]["message"]
    assert reply.status_code == 400
    assert message.count(";") < 10
    assert "messages[0].role" in message
    assert "seed" in message


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "multipart/form-data; boundary=x"},
        {"content-type": "application/json; charset=utf-16"},
        {"content-type": "application/json", "content-encoding": "gzip"},
    ],
)
def test_other_media_types_and_encodings_are_415(headers: dict[str, str]) -> None:
    reply = ask(TEXT, content=b'{"prompt":"Hi"}', headers=headers)
    assert (reply.status_code, reply.json()["error"]["reason"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize(
    "kind", ["application/json", "Application/JSON;charset=UTF-8", 'application/json; charset="utf-8"']
)
def test_json_in_utf8_is_taken_whatever_the_client_accepts(kind: str) -> None:
    headers = {"content-type": kind, "accept": "image/png", "range": "bytes=0-1", "traceparent": "zz-1"}
    assert ask(TEXT, content=b'{"prompt":"Hi"}', headers=headers).status_code == 200


@pytest.mark.parametrize("path", [TEXT, CHAT, "/tokenize", "/detokenize"])
def test_body_over_the_cap_is_413_and_closes(path: str) -> None:
    server = ServerConfig(limits=Limits(max_body_bytes=1000))
    reply = ask(path, server, content=b" " * 1001, headers=JSON)
    assert (reply.status_code, reply.json()["error"]["reason"]) == (413, "too_large")
    assert reply.headers["connection"] == "close"


def test_prompt_of_context_minus_one_is_served() -> None:
    assert ask(TEXT, json={"prompt": [30] * 2047, "max_tokens": 1}).status_code == 200


def test_nesting_up_to_the_limit_is_ignored_like_any_unknown_field() -> None:
    body = NESTED % (b"[" * 63, b"]" * 63)
    assert ask(TEXT, content=body, headers=JSON).status_code == 200


def test_bug_is_a_500_with_an_id_that_stands_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> httpx.Response:
        async with served(FakeEngine(lambda request: [30])) as app:

            async def broken(*args: Any, **kwargs: Any) -> Any:
                raise KeyError("/secret/path")

            app.llm.submit = broken  # type: ignore[method-assign]
            return await app.post(TEXT, {"prompt": "Hi"})

    reply = asyncio.run(scenario())
    assert reply.status_code == 500
    error = reply.json()["error"]
    assert (error["type"], error["reason"]) == ("InternalServerError", "internal_error")
    assert "secret" not in reply.text
    assert reply.headers["x-request-id"] in error["message"]
    assert reply.headers["x-request-id"] in caplog.text
    assert "secret" in caplog.text

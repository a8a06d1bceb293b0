"""Exchanges recorded with a live vLLM 0.32 and this model in float32, replayed: the same shapes and numbers."""

import json
from pathlib import Path
from typing import Any

import pytest
from asked import CHAT, TEXT, Asked
from reply_shape import shape_of
from serving import MODEL, Server

pytestmark = pytest.mark.timeout(300)

SHAPES = json.loads((Path(__file__).parents[1] / "server" / "reply_shapes.json").read_text())
"""Recorded replies with every value replaced by its kind."""

QUESTION: dict[str, Any] = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}
PROMPT: dict[str, Any] = {"prompt": "The capital of France is"}
ANSWER, STORY = "The capital of France is Paris.", " Paris.\n\nThe answer is: 201"
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 10}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON, "strict": True}}


@pytest.fixture(scope="module")
def ask(float32_server: Server) -> Asked:
    return Asked(float32_server)


@pytest.mark.parametrize(
    ("name", "path", "fields", "text", "num_tokens"),
    [
        ("chat", CHAT, {**QUESTION, "max_tokens": 12}, ANSWER, (37, 8)),
        (
            "chat_logprobs",
            CHAT,
            {**QUESTION, "max_tokens": 12, "logprobs": True, "top_logprobs": 3},
            ANSWER,
            (37, 8),
        ),
        ("chat_stop", CHAT, {**QUESTION, "max_tokens": 12, "stop": ["capital"]}, "The ", (37, 2)),
        (
            "chat_structured_choice",
            CHAT,
            {**QUESTION, "max_tokens": 12, "structured_outputs": {"choice": ["yes", "no"]}},
            "no",
            (37, 3),
        ),
        ("comp", TEXT, {**PROMPT, "max_tokens": 12}, STORY, (5, 12)),
        ("comp_logprobs", TEXT, {**PROMPT, "max_tokens": 12, "logprobs": 2}, STORY, (5, 12)),
        ("comp_echo_lp", TEXT, {**PROMPT, "max_tokens": 2, "echo": True, "logprobs": 1}, ANSWER, (5, 2)),
        ("comp_tokens", TEXT, {"prompt": [504, 3575, 282, 4649, 314], "max_tokens": 12}, STORY, (5, 12)),
    ],
)
def test_greedy_reply_has_the_recorded_shape_text_and_usage(
    ask: Asked, name: str, path: str, fields: dict[str, Any], text: str, num_tokens: tuple[int, int]
) -> None:
    reply = ask.reply(path, **fields)
    assert json.dumps(shape_of(reply)) == json.dumps(SHAPES[name])
    choice, usage = reply["choices"][0], reply["usage"]
    assert (choice["message"]["content"] if path == CHAT else choice["text"]) == text
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == num_tokens


def test_sampled_reply_has_the_recorded_shape(ask: Asked) -> None:
    reply = ask.reply(TEXT, prompt=["Hello", "The sky is"], max_tokens=12, temperature=0.7, n=2, seed=1)
    assert json.dumps(shape_of(reply)) == json.dumps(SHAPES["comp_list"])
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3]
    assert (reply["usage"]["prompt_tokens"], reply["usage"]["completion_tokens"]) == (4, 48)


def test_reply_in_a_schema_has_the_recorded_shape_and_ends_by_itself(ask: Asked) -> None:
    messages = [{"role": "user", "content": "Give a person"}]
    reply = ask.reply(CHAT, messages=messages, max_tokens=40, response_format=JSON_SCHEMA)
    assert json.dumps(shape_of(reply)) == json.dumps(SHAPES["chat_json_schema"])
    person = json.loads(reply["choices"][0]["message"]["content"])
    assert (list(person), reply["choices"][0]["finish_reason"]) == (["name", "age"], "stop")


@pytest.mark.parametrize(
    ("name", "path", "fields", "text", "num_chunks"),
    [("chat_stream", CHAT, QUESTION, ANSWER, 10), ("comp_stream", TEXT, PROMPT, STORY, 13)],
)
def test_stream_has_the_recorded_chunks(
    ask: Asked, name: str, path: str, fields: dict[str, Any], text: str, num_chunks: int
) -> None:
    events = ask.events(path, **fields, max_tokens=12, stream_options={"include_usage": True})
    shapes = [json.dumps(shape_of(event)) for event in events]
    assert list(dict.fromkeys(shapes)) == [json.dumps(shape) for shape in SHAPES[name]]
    assert len(events) == num_chunks
    choices = [choice for event in events for choice in event["choices"]]
    pieces = [choice["delta"].get("content", "") if path == CHAT else choice["text"] for choice in choices]
    assert "".join(pieces) == text


def test_log_probabilities_are_the_recorded_ones(ask: Asked) -> None:
    chat = ask.chat("What is the capital of France?", max_tokens=12, logprobs=True, top_logprobs=3)
    first = chat["logprobs"]["content"][0]
    assert [token["token"] for token in first["top_logprobs"]] == ["The", "L", "La"]
    assert [token["logprob"] for token in first["top_logprobs"]] == close([-1.88271, -1.96481, -2.26568])
    assert [entry["logprob"] for entry in chat["logprobs"]["content"]] == close(
        [-1.88271, -0.01966, -0.01146, -0.01089, -0.03879, -0.04996, -0.56559, -0.25782]
    )
    text = ask.text(PROMPT["prompt"], max_tokens=12, logprobs=2)["logprobs"]
    assert text["token_logprobs"] == close(
        [
            *(-0.25807, -0.38013, -1.00934, -0.87928, -1.936, -3.20941),
            *(-0.35028, -0.46372, -0.69237, -1.23452, -1.76219, -1.58794),
        ]
    )
    assert list(text["top_logprobs"][5].items()) == [
        (" answer", close(-3.20941)),
        (" United", close(-3.42924)),
    ]
    echoed = ask.text(PROMPT["prompt"], max_tokens=2, echo=True, logprobs=1)
    assert echoed["logprobs"]["token_logprobs"][0] is None
    assert echoed["logprobs"]["token_logprobs"][1:5] == close([-11.53927, -0.33761, -2.43866, -0.45092])
    assert echoed["prompt_logprobs"][1]["3575"]["rank"] == 2923


def close(value: Any) -> Any:
    return pytest.approx(value, abs=1e-3)


def test_lists_versions_and_tokens_have_the_recorded_shape(ask: Asked) -> None:
    models = ask.server.request("GET", "/v1/models")[1]
    assert json.dumps(shape_of(models)) == json.dumps(SHAPES["models"])
    assert (models["data"][0]["id"], models["data"][0]["max_model_len"]) == (MODEL, 2048)
    assert shape_of(ask.server.request("GET", "/version")[1]) == SHAPES["version"]
    tokens = ask.reply("/tokenize", prompt="Hello 123")
    assert tokens == {"count": 5, "max_model_len": 2048, "tokens": [19556, 216, 33, 34, 35], "token_strs": None}
    assert ask.reply("/detokenize", tokens=[504, 3575]) == {"prompt": "The capital"}


@pytest.mark.parametrize(
    ("fields", "status", "kind", "param"),
    [
        ({**QUESTION, "temperature": 3}, 400, "BadRequestError", "temperature"),
        ({**QUESTION, "model": "nope"}, 404, "NotFoundError", "model"),
        ({**QUESTION, "n": 0}, 400, "BadRequestError", "n"),
        ({**QUESTION, "stream_options": {"include_usage": True}}, 400, "BadRequestError", "stream_options"),
        ({"messages": [{"role": "user", "content": "word " * 3000}]}, 400, "BadRequestError", "messages"),
    ],
)
def test_error_has_the_recorded_status_and_type(
    ask: Asked, fields: dict[str, Any], status: int, kind: str, param: str
) -> None:
    replied, body = ask.server.request("POST", CHAT, {"model": MODEL, **fields})
    assert replied == status
    assert list(body["error"]) == ["message", "type", "param", "code", "reason"]
    assert (body["error"]["type"], body["error"]["param"], body["error"]["code"]) == (kind, param, status)


def test_named_tool_is_called(ask: Asked) -> None:
    """vLLM's recorded reply is the call's text cut in its content: its parser was switched off."""
    function = {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    }
    named = {"type": "function", "function": {"name": "get_weather"}}
    fields = {"tools": [{"type": "function", "function": function}], "tool_choice": named, "max_tokens": 60}
    choice = ask.chat("What is the capital of France?", **fields)
    assert (choice["message"]["content"], len(choice["message"]["tool_calls"])) == (None, 1)
    recorded = SHAPES["chat_tools_named"]["choices"][0]["message"].keys()
    assert choice["message"].keys() - recorded == {"tool_calls"}

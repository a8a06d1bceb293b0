"""A whole number may be 2.0, as in vLLM and JSON Schema; half a token is refused, and so are ids of prompts."""

from typing import Any

import pytest
from fake_engine import FakeEngine
from http_app import MODEL, served
from in_loop import in_loop

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
MESSAGES = {"model": MODEL, **CHAT, "max_tokens": 2}
TEXT, RESPONSES, EMBEDDINGS = "/v1/completions", "/v1/responses", "/v1/embeddings"


async def ask(path: str, body: dict[str, Any]) -> tuple[int, Any, FakeEngine]:
    """(status, body, engine) of one request."""
    engine = FakeEngine(lambda request: [30] * 9)
    async with served(engine) as app:
        reply = await app.post(path, body)
        return reply.status_code, reply.json(), engine


@in_loop
async def test_a_whole_float_is_the_number_that_it_is() -> None:
    numbers = {"max_tokens": 2.0, "n": 1.0, "seed": -7.0, "top_k": 5.0, "min_tokens": 1.0, "priority": 0.0}
    ids = {"stop_token_ids": [7.0, 8], "allowed_token_ids": [30.0, 31.0]}
    status, body, engine = await ask(TEXT, {"prompt": "Hi", **numbers, **ids, "logprobs": 1.0, "best_of": 1.0})
    assert status == 200, body
    sampling = engine.added[0].sampling
    assert (sampling.max_tokens, sampling.seed, sampling.top_k, sampling.min_tokens) == (2, -7, 5, 1)
    assert (sorted(sampling.stop_token_ids), sampling.logprobs) == ([7, 8], 1)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {**CHAT, "max_completion_tokens": 2.0, "logprobs": True, "top_logprobs": 1.0}),
        (RESPONSES, {"model": MODEL, "input": "Hi", "max_output_tokens": 2.0, "top_logprobs": 1.0}),
        ("/v1/messages", {**MESSAGES, "max_tokens": 2.0, "top_k": 5.0}),
        (EMBEDDINGS, {"input": "Hi", "dimensions": 576.0, "truncate_prompt_tokens": 1.0}),
        ("/rerank", {"query": "Hi", "documents": ["a", "b"], "top_n": 1.0}),
        ("/detokenize", {"tokens": [504.0, 3575]}),
    ],
)
@in_loop
async def test_every_route_takes_whole_floats(path: str, fields: dict[str, Any]) -> None:
    status, body, _ = await ask(path, fields)
    assert status == 200, body


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (TEXT, {"prompt": "Hi", "max_tokens": 2.5}, "max_tokens"),
        (TEXT, {"prompt": "Hi", "n": 1e300}, "n"),
        (TEXT, {"prompt": "Hi", "n": 0.0}, "n"),
        (TEXT, {"prompt": "Hi", "priority": 2000000.0}, "priority"),
        (TEXT, {"prompt": "Hi", "seed": "2"}, "seed"),
        (TEXT, {"prompt": "Hi", "stop_token_ids": [True, 2.0]}, "stop_token_ids"),
        (TEXT, {"prompt": [1.0]}, "prompt"),
        (TEXT, {"prompt": [[1, 2.0]]}, "prompt"),
        (EMBEDDINGS, {"input": [1, 2.0]}, "input"),
        ("/v1/messages", {**MESSAGES, "max_tokens": 0.0}, "max_tokens"),
        (RESPONSES, {"model": MODEL, "input": "Hi", "max_output_tokens": 1.5}, "max_output_tokens"),
    ],
)
@in_loop
async def test_what_is_no_whole_number_is_refused_by_name(path: str, fields: dict[str, Any], param: str) -> None:
    status, body, engine = await ask(path, fields)
    assert (status, body["error"]["param"], engine.added) == (400, param, [])


@in_loop
async def test_the_document_says_integer_with_its_bounds() -> None:
    async with served(FakeEngine(lambda request: [0])) as app:
        schemas = (await app.client.get("/openapi.json")).json()["components"]["schemas"]
    fields = schemas["CompletionRequest"]["properties"]
    assert fields["max_tokens"]["type"] == "integer"
    assert (fields["priority"]["type"], fields["priority"]["maximum"]) == ("integer", 1_000_000)

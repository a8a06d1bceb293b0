"""/v1/embeddings over a fake engine: what it is asked for, what comes back, and what is refused."""

import base64
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fake_engine import ERROR_TOKEN, FakeEngine, fake_vector
from http_app import MODEL, model_config, served, tokenizer
from in_loop import in_loop
from openai import AsyncOpenAI

from vllm_obs.engine.config import PoolingConfig, VllmConfig
from vllm_obs.engine.messages import Float32Array
from vllm_obs.engine.pooling.vectors import finished
from vllm_obs.server.config import ServerConfig
from vllm_obs.telemetry.records import RequestEnded, RequestSubmitted

PATH = "/v1/embeddings"
Values = list[float]


def engine() -> FakeEngine:
    return FakeEngine(lambda request: [0])


def with_pooling(**changes: Any) -> VllmConfig:
    config = model_config()
    return replace(config, model=replace(config.model, pooling=replace(config.model.pooling, **changes)))


def expected(token_ids: list[int], dimensions: int | None = None) -> Float32Array:
    return finished(fake_vector(token_ids), normalize=True, dimensions=dimensions)


async def ask(fields: dict[str, Any], config: VllmConfig | None = None) -> dict[str, Any]:
    async with served(engine(), config=config) as app:
        reply = await app.post(PATH, fields)
        assert reply.status_code == 200, reply.text
        body: dict[str, Any] = reply.json()
        return body


async def refused(fields: dict[str, Any], config: VllmConfig | None = None, path: str = PATH) -> tuple[Any, ...]:
    """(status, reason, param) of the refusal; nothing must have reached the engine."""
    core = engine()
    async with served(core, config=config) as app:
        reply = await app.post(path, fields)
        error = reply.json()["error"]
        assert core.added == []
        return reply.status_code, error["reason"], error["param"]


@in_loop
async def test_the_reply_has_a_vector_of_length_one_for_each_text_and_counts_its_tokens() -> None:
    body = await ask({"model": MODEL, "input": ["Hello there", "x"]})
    ids = [tokenizer().encode(text) for text in ("Hello there", "x")]
    num_tokens = sum(map(len, ids))
    assert body.pop("id").startswith("embd-")
    assert body.pop("created") > 0
    assert body == {
        "object": "list",
        "model": MODEL,
        "data": [
            {
                "index": index,
                "object": "embedding",
                "embedding": [pytest.approx(value, abs=1e-7) for value in expected(tokens).tolist()],
            }
            for index, tokens in enumerate(ids)
        ],
        "usage": {
            "prompt_tokens": num_tokens,
            "total_tokens": num_tokens,
            "completion_tokens": 0,
            "prompt_tokens_details": None,
        },
    }


@pytest.mark.parametrize(
    ("given", "ids"),
    [
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
    ],
)
@in_loop
async def test_token_ids_are_taken_as_they_are(given: Any, ids: list[list[int]]) -> None:
    body = await ask({"input": given})
    vectors = [row["embedding"] for row in body["data"]]
    np.testing.assert_array_equal(np.array(vectors, np.float32), np.stack([expected(row) for row in ids]))


@in_loop
async def test_the_openai_client_reads_both_formats_and_base64_is_little_endian_float32() -> None:
    ids = tokenizer().encode("Hello there")
    async with served(engine()) as app:
        client = AsyncOpenAI(base_url="http://test/v1", api_key="none", http_client=app.client)
        default = await client.embeddings.create(model=MODEL, input="Hello there")
        plain = await client.embeddings.create(model=MODEL, input="Hello there", encoding_format="float")
        reply = await app.post(PATH, {"input": "Hello there", "encoding_format": "base64"})
    raw = np.frombuffer(base64.b64decode(reply.json()["data"][0]["embedding"]), "<f4")
    for values in (default.data[0].embedding, plain.data[0].embedding, raw):
        np.testing.assert_array_equal(np.array(values, np.float32), expected(ids))
    assert default.usage.prompt_tokens == default.usage.total_tokens == len(ids)


@in_loop
async def test_the_engine_is_asked_for_a_vector_and_the_record_says_so() -> None:
    core = engine()
    async with served(core) as app:
        await app.post(PATH, {"input": "Hello", "priority": 3, "cache_salt": "s"})
        submitted = [record for record in app.recorder.records if isinstance(record, RequestSubmitted)]
        ended = [record for record in app.recorder.records if isinstance(record, RequestEnded)]
    (request,) = core.added
    assert (request.sampling.pooling, request.sampling.max_tokens) == ("last", 0)
    assert (request.priority, request.cache_salt) == (3, "s")
    assert [(record.operation, record.max_tokens, record.is_streamed) for record in submitted] == [
        ("embeddings", 0, False)
    ]
    assert [(record.finish_reason, record.num_output_tokens) for record in ended] == [("stop", 0)]


@in_loop
async def test_normalising_is_the_models_own_unless_the_request_says_otherwise() -> None:
    config = with_pooling(normalize=False, kind="mean")
    raw, asked = await ask({"input": [5]}, config), await ask({"input": [5], "normalize": True}, config)
    opposite = await ask({"input": [5], "use_activation": False})
    np.testing.assert_array_equal(np.array(raw["data"][0]["embedding"], np.float32), fake_vector([5]))
    np.testing.assert_array_equal(np.array(asked["data"][0]["embedding"], np.float32), expected([5]))
    np.testing.assert_array_equal(np.array(opposite["data"][0]["embedding"], np.float32), fake_vector([5]))


@in_loop
async def test_truncating_keeps_the_beginning_of_a_text() -> None:
    core = engine()
    async with served(core) as app:
        await app.post(PATH, {"input": [[50, 60, 70, 80]], "truncate_prompt_tokens": 2})
        await app.post(PATH, {"input": "a b " * 5000, "truncate_prompt_tokens": -1})
    assert core.added[0].prompt_token_ids.tolist() == [50, 60]
    assert len(core.added[1].prompt_token_ids) == 2048


@in_loop
async def test_as_many_tokens_as_the_context_has_can_be_embedded_and_no_more() -> None:
    body = await ask({"input": [[7] * 2048]})
    assert body["usage"]["prompt_tokens"] == 2048
    assert await refused({"input": [[7] * 2049]}) == (400, "context_length_exceeded", "input")


@in_loop
async def test_vectors_are_cut_only_where_the_model_was_made_for_that() -> None:
    assert len((await ask({"input": [5], "dimensions": 576}))["data"][0]["embedding"]) == 576
    assert await refused({"input": [5], "dimensions": 64}) == (400, "invalid_value", "dimensions")
    any_size = with_pooling(is_matryoshka=True)
    values = (await ask({"input": [5], "dimensions": 64}, any_size))["data"][0]["embedding"]
    np.testing.assert_array_equal(np.array(values, np.float32), expected([5], 64))
    assert await refused({"input": [5], "dimensions": 577}, any_size) == (400, "invalid_value", "dimensions")
    some = with_pooling(is_matryoshka=True, matryoshka_dimensions=(64, 128))
    assert len((await ask({"input": [5], "dimensions": 128}, some))["data"][0]["embedding"]) == 128
    assert await refused({"input": [5], "dimensions": 100}, some) == (400, "invalid_value", "dimensions")


@pytest.mark.parametrize(
    ("fields", "reason", "param"),
    [
        ({}, "empty_prompt", "input"),
        ({"input": ""}, "empty_prompt", "input"),
        ({"input": []}, "empty_prompt", "input"),
        ({"input": [[]]}, "empty_prompt", "input"),
        ({"input": ["a", ""]}, "empty_prompt", "input"),
        ({"input": 5}, "invalid_value", "input"),
        ({"input": ["a", 5]}, "invalid_value", "input"),
        ({"input": [49152]}, "invalid_value", "input"),
        ({"input": [-1]}, "invalid_value", "input"),
        ({"input": ["a"] * 2049}, "too_many_sequences", "input"),
        ({"input": ["a" * 1_000_000] * 5}, "too_many_sequences", "input"),
        ({"input": "a", "encoding_format": "bytes"}, "invalid_value", "encoding_format"),
        ({"input": "a", "dimensions": 0}, "invalid_value", "dimensions"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "invalid_value", "truncate_prompt_tokens"),
        ({"input": "a", "truncate_prompt_tokens": -2}, "invalid_value", "truncate_prompt_tokens"),
        ({"input": "a", "priority": 10**9}, "invalid_value", "priority"),
        ({"input": "a", "user": "u" * 2000}, "invalid_value", "user"),
    ],
)
@in_loop
async def test_what_can_never_succeed_is_a_400_that_names_the_field(
    fields: dict[str, Any], reason: str, param: str
) -> None:
    assert await refused(fields) == (400, reason, param)


@in_loop
async def test_a_model_that_is_not_served_is_a_404() -> None:
    assert await refused({"input": "a", "model": "other"}) == (404, "model_not_found", "model")


@in_loop
async def test_a_request_whose_states_are_broken_fails_alone() -> None:
    core = FakeEngine(lambda request: [ERROR_TOKEN] if len(request.prompt_token_ids) == 3 else [0])
    async with served(core) as app:
        bad = await app.post(PATH, {"input": [[1], [1, 2, 3]]})
        good = await app.post(PATH, {"input": [[1], [1, 2]]})
    assert (bad.status_code, good.status_code) == (500, 200)
    assert "secret" not in bad.text
    assert core.num_running == 0


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"prompt": "Hello", "max_tokens": 4}),
        ("/v1/completions", {"prompt": [1, 2], "max_tokens": 0, "echo": True}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}]}),
    ],
)
@in_loop
async def test_an_encoder_refuses_to_generate(path: str, fields: dict[str, Any]) -> None:
    config = model_config()
    shape = replace(config.model.architecture, name="BertModel")
    encoder = replace(config, model=replace(config.model, architecture=shape, pooling=PoolingConfig("mean")))
    assert await refused(fields, encoder, path) == (400, "unsupported", "model")
    assert len((await ask({"input": "Hello"}, encoder))["data"]) == 1


@in_loop
async def test_a_synthetic_engine_does_not_embed() -> None:
    config = model_config()
    synthetic = replace(config, model=replace(config.model, source="synthetic"))
    assert await refused({"input": "Hello"}, synthetic) == (400, "unsupported", "model")


@in_loop
async def test_cached_tokens_are_told_where_details_are_on() -> None:
    async with served(engine(), ServerConfig(enable_prompt_tokens_details=True)) as app:
        reply = await app.post(PATH, {"input": "Hello"})
    assert reply.json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


@in_loop
async def test_many_texts_come_back_in_their_order() -> None:
    body = await ask({"input": [[number] for number in range(300)]})
    assert [row["index"] for row in body["data"]] == list(range(300))
    got = np.array([row["embedding"] for row in body["data"]], np.float32)
    np.testing.assert_array_equal(got, np.stack([expected([number]) for number in range(300)]))


HI = [{"role": "user", "content": "Hi"}]
PROMPT = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
PROMPT += "<|im_start|>user\nHi<|im_end|>\n"


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({}, PROMPT),
        ({"add_generation_prompt": True}, PROMPT + "<|im_start|>assistant\n"),
        ({"continue_final_message": True}, PROMPT.removesuffix("<|im_end|>\n")),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]}, PROMPT),
    ],
)
@in_loop
async def test_a_conversation_is_embedded_as_the_prompt_it_makes(fields: dict[str, Any], prompt: str) -> None:
    ids = tokenizer().encode(prompt, add_special_tokens=False)
    body = await ask({"model": MODEL, "messages": HI, **fields})
    assert (len(body["data"]), body["usage"]["prompt_tokens"]) == (1, len(ids))
    np.testing.assert_array_equal(np.array(body["data"][0]["embedding"], np.float32), expected(ids))


@pytest.mark.parametrize(
    ("fields", "reason", "param"),
    [
        ({"messages": []}, "empty_prompt", "messages"),
        ({"messages": HI, "input": "Hi"}, "invalid_value", "input"),
        ({"messages": [{"role": "root", "content": "Hi"}]}, "invalid_value", "messages[0].role"),
        ({"messages": HI, "encoding_format": "bytes"}, "invalid_value", "encoding_format"),
        ({"messages": HI, "chat_template": "x"}, "unsupported", "chat_template"),
        ({"messages": [{"role": "user", "content": "word " * 2048}]}, "context_length_exceeded", "messages"),
        (
            {"messages": HI, "add_generation_prompt": True, "continue_final_message": True},
            "invalid_value",
            "continue_final_message",
        ),
    ],
)
@in_loop
async def test_a_conversation_that_cannot_be_embedded_is_a_400(
    fields: dict[str, Any], reason: str, param: str
) -> None:
    assert await refused(fields) == (400, reason, param)


@in_loop
async def test_a_conversation_can_be_cut_and_its_vector_be_base64() -> None:
    body = await ask({"messages": HI, "truncate_prompt_tokens": 2, "encoding_format": "base64"})
    ids = tokenizer().encode(PROMPT, add_special_tokens=False)[:2]
    raw = np.frombuffer(base64.b64decode(body["data"][0]["embedding"]), "<f4")
    np.testing.assert_array_equal(raw, expected(ids))


@in_loop
async def test_an_encoder_with_a_chat_template_embeds_conversations() -> None:
    config = model_config()
    shape = replace(config.model.architecture, name="BertModel")
    model = replace(config.model, architecture=shape, pooling=PoolingConfig("mean"))
    assert len((await ask({"messages": HI}, replace(config, model=model)))["data"]) == 1

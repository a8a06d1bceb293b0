"""Real servers that embed: beside generation, and an encoder that does nothing else; both are observed."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from observed_server import NAME, ObservedServer, await_that, observed, total
from serving import serving
from tiny_encoders import write_encoder

TEXTS = ["Paris is in France", "A cat sleeps on the mat", "The sea is blue"]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObservedServer]:
    directory = tmp_path_factory.mktemp("model")
    with observed(directory, "--pooler-config", '{"pooling_type": "MEAN"}') as server:
        yield server


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObservedServer]:
    path = write_encoder(tmp_path_factory.mktemp("encoder"))
    with (
        serving(str(path), "--served-model-name", NAME) as server,
        contextlib.closing(ObservedServer(server)) as running,
    ):
        yield running


def ask(server: ObservedServer, path: str, **body: Any) -> Any:
    status, reply = server.server.request("POST", path, body)
    assert status == 200, reply
    return reply


def vectors(server: ObservedServer, texts: list[str]) -> list[list[float]]:
    return [row["embedding"] for row in ask(server, "/v1/embeddings", model=NAME, input=texts)["data"]]


def check_books(server: ObservedServer) -> None:
    """Every sequence has its ending, every stage its time, and no law is broken."""
    await_that(lambda: server.inspect("requests?limit=1")["num_live"] == 0)
    samples = server.samples()
    levels = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
    assert [total(samples, name) for name in levels] == [0, 0, 0]
    assert server.broken_laws() == []
    requests = server.inspect("requests?limit=20")["requests"]
    assert requests
    for told in requests:
        (one, *_) = server.request(told["http_id"])["sequences"]
        assert sum(one["stage_ns"].values()) == one["latency_ns"], one
        assert min(one["stage_ns"].values()) >= 0, one


def test_vectors_and_texts_come_from_one_server_at_once_and_do_not_change_each_other(
    decoder: ObservedServer,
) -> None:
    alone = [vectors(decoder, [text])[0] for text in TEXTS]
    text = decoder.complete(prompt="The sea", max_tokens=24, temperature=0)["choices"][0]["text"]
    with ThreadPoolExecutor(8) as pool:
        made = [pool.submit(vectors, decoder, TEXTS) for _ in range(6)]
        written = [pool.submit(decoder.complete, prompt="The sea", max_tokens=24, temperature=0) for _ in range(4)]
    assert [future.result() for future in made] == [alone] * 6
    assert {future.result()["choices"][0]["text"] for future in written} == {text}
    check_books(decoder)


def test_an_encoder_embeds_and_ranks_and_generates_nothing(encoder: ObservedServer) -> None:
    first = np.array(vectors(encoder, ["the cat", "cats, unable", "the sea."]))
    np.testing.assert_allclose(np.linalg.norm(first, axis=1), 1, atol=1e-6)
    ranked = ask(encoder, "/rerank", query="the cat", documents=["the sea.", "the cat", "cats, unable"])
    assert (ranked["results"][0]["index"], round(ranked["results"][0]["relevance_score"], 5)) == (1, 1.0)
    for path, body in (
        ("/v1/completions", {"prompt": "the cat", "max_tokens": 3}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "the cat"}]}),
    ):
        status, reply = encoder.server.request("POST", path, body)
        assert (status, reply["error"]["reason"]) == (400, "unsupported"), reply
        assert "does not generate" in reply["error"]["message"]
    models = encoder.server.request("GET", "/v1/models")[1]["data"]
    assert [model["max_model_len"] for model in models] == [48]
    check_books(encoder)


def test_many_texts_at_once_pass_in_their_order(encoder: ObservedServer) -> None:
    words = ("cat", "sea", "the", "unable")
    texts = [" ".join(words[n * k % 4] for k in range(1, 2 + n % 20)) for n in range(200)]
    whole = vectors(encoder, texts)
    np.testing.assert_allclose(whole[37], vectors(encoder, [texts[37]])[0], atol=1e-5)
    np.testing.assert_allclose(whole[199], vectors(encoder, [texts[199]])[0], atol=1e-5)
    check_books(encoder)

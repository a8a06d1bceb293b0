"""What a request does not say is as the server's operator has it, on every route that generates."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from fake_engine import FakeEngine
from http_app import model_config, served, tokenizer

from vllm_obs.engine.config import GenerationConfig
from vllm_obs.engine.messages import EngineCoreRequest

DEFAULTS = GenerationConfig(temperature=0.5, top_p=0.25, top_k=7, max_new_tokens=4)
CHAT = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "Hi"},
    "/v1/chat/completions": {"messages": CHAT},
    "/v1/chat/completions/batch": {"messages": [CHAT]},
    "/v1/responses": {"model": "m", "input": "Hi"},
    "/v1/messages": {"model": "m", "messages": CHAT, "max_tokens": 100},
}


def asked(path: str, **fields: Any) -> tuple[EngineCoreRequest, dict[str, Any]]:
    """What the engine was given for that body and these fields, and the reply."""

    async def ask() -> tuple[EngineCoreRequest, dict[str, Any]]:
        engine = FakeEngine(lambda request: [*tokenizer().encode("Hello", add_special_tokens=False), 2])
        model = replace(model_config().model, generation=DEFAULTS, served_model_names=("m",))
        async with served(engine, config=replace(model_config(), model=model)) as app:
            reply = await app.post(path, {**BODIES[path], **fields})
            assert reply.status_code == 200, reply.text
            return engine.added[0], reply.json()

    return asyncio.run(ask())


@pytest.mark.parametrize("path", BODIES)
def test_open_fields_are_the_servers(path: str) -> None:
    sampling = asked(path)[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.max_tokens) == (0.5, 0.25, 7, 4)


@pytest.mark.parametrize("path", BODIES)
def test_what_a_client_says_holds_below_the_most_there_is(path: str) -> None:
    more = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    sampling = asked(path, temperature=1.0, top_p=1.0, **{more: 100})[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.max_tokens) == (1.0, 1.0, 7, 4)
    assert asked(path, **{more: 2})[0].sampling.max_tokens == 2


def test_a_null_is_left_open() -> None:
    assert asked("/v1/completions", temperature=None)[0].sampling.temperature == 0.5


def test_a_response_says_what_it_was_sampled_with() -> None:
    assert asked("/v1/responses")[1]["temperature"] == 0.5

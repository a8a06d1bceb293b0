"""Whatever the engine says, a stream comes to its whole reply: random requests over a fake engine."""

import asyncio
import random
from collections.abc import Callable
from typing import Any
from zlib import crc32

import pytest
from event_assembler import told_message, told_response, without_new
from fake_engine import FakeEngine
from http_app import served, tokenizer
from random_exchanges import CALLS, TEXTS, THOUGHTS, random_exchange
from random_turns import random_message, random_response
from stream_assembler import chunks_of, told_by_stream, told_whole

from vllm_obs.engine.messages import EngineCoreRequest
from vllm_obs.server.config import ServerConfig

SERVER = ServerConfig(
    enable_auto_tool_choice=True,
    tool_call_parser="hermes",
    reasoning_parser="qwen3",
    enable_prompt_tokens_details=True,
)
SAYINGS = (
    *(*THOUGHTS, *CALLS, *TEXTS),
    '[{"name": "ping", "parameters": {}}, {"name": "get_weather", "parameters": {"city": "R🙂me"}}]',
    '{"city": "Rome", "days": 3}',
    "<tool_call>\n<tool_call> {",
)


def say(request: EngineCoreRequest) -> list[int]:
    """The same for the same request: sayings, and tokens that make half characters."""
    sampling = request.sampling
    prompt = crc32(request.prompt_token_ids.tobytes())
    rng = random.Random(sampling.sequence_index + (sampling.seed if sampling.temperature else prompt))
    token_ids: list[int] = []
    for _ in range(rng.randint(1, 3)):
        saying = tokenizer().encode(rng.choice(SAYINGS), add_special_tokens=False)
        token_ids += saying if rng.random() < 0.7 else rng.choices(range(100, 400), k=5)
    return [*token_ids, 2]


def test_completions_and_chats() -> None:
    async def scenario() -> None:
        async with served(FakeEngine(say), SERVER) as app:
            for number in range(300):
                exchange = random_exchange(number)
                reply, stream = [await app.post(exchange.path, b) for b in (exchange.body, exchange.streamed)]
                assert reply.status_code == 200, reply.text
                whole, streamed = told_whole(reply.json()), told_by_stream(chunks_of(stream.text))
                if streamed["usage"] is None:
                    whole["usage"] = None
                assert streamed == whole, number

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("path", "make", "tell"),
    [
        ("/v1/responses", random_response, told_response),
        ("/v1/messages", random_message, told_message),
    ],
)
def test_typed_events(path: str, make: Callable[[int], Any], tell: Callable[[str], Any]) -> None:
    async def scenario() -> None:
        async with served(FakeEngine(say), SERVER) as app:
            for number in range(150):
                body = make(number)
                reply, stream = [await app.post(path, {**body, "stream": flag}) for flag in (False, True)]
                assert reply.status_code == 200, reply.text
                assert without_new(tell(stream.text)) == without_new(reply.json()), number

    asyncio.run(scenario())

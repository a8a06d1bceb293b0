"""What grammars cost a running server: throughput under one, and a stream's tokens while others are compiled."""

import asyncio
import itertools
import random
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx

NUM_STREAMS = 16
NUM_TOKENS = 400
WARM_UP_SECONDS = 4.0
NUM_COMPILED = 20
NUM_ORDINARY = 100
TIMEOUT = httpx.Timeout(120.0)


async def moments(client: httpx.AsyncClient, body: dict[str, Any]) -> AsyncIterator[float]:
    """When each chunk of a streamed completion came, in seconds."""
    async with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as reply:
        reply.raise_for_status()
        async for line in reply.aiter_lines():
            if line.startswith("data: {"):
                yield time.perf_counter()


async def tokens_per_second(url: str, schema: dict[str, Any] | None, seconds: float) -> float:
    """Of all streams together, each followed by another until the time is up."""
    ends_at, num_tokens = time.perf_counter() + seconds, 0
    fields: dict[str, Any] = {} if schema is None else {"structured_outputs": {"json": schema}}

    async def one(client: httpx.AsyncClient) -> None:
        nonlocal num_tokens
        while time.perf_counter() < ends_at:
            prompt = f"Write a long JSON story {random.randrange(10**6)}: "
            body = {"prompt": prompt, "max_tokens": NUM_TOKENS, "temperature": 0.8, "ignore_eos": True, **fields}
            async for at in moments(client, body):
                num_tokens += 1
                if at > ends_at:
                    return

    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT) as client:
        await asyncio.gather(*(one(client) for _ in range(NUM_STREAMS)))
    return num_tokens / seconds


async def measure_throughput(url: str, schema: dict[str, Any], num_pairs: int, seconds: float) -> None:
    """Print each pair of windows, one without and one with the schema, and the median ratio with its range."""
    for warmed in (schema, None):
        await tokens_per_second(url, warmed, WARM_UP_SECONDS)
    ratios = []
    for number in range(num_pairs):
        order = (None, schema) if number % 2 else (schema, None)
        found = {which is None: await tokens_per_second(url, which, seconds) for which in order}
        ratios.append(found[False] / found[True])
        print(f"without {found[True]:.1f}, with {found[False]:.1f} tokens/s: {ratios[-1]:.3f}", flush=True)
    print(f"median {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}), {num_pairs} pairs")


def slow_grammar(number: int) -> dict[str, Any]:
    """One that takes tens of milliseconds to compile, or is refused; each number's is another."""
    match number % 3:
        case 0:
            return {"choice": [f"grammar {number} has {place * place} in place {place}" for place in range(2500)]}
        case 1:
            fields = {f"field{name}": {"enum": [f"{number} {v}" for v in range(40)]} for name in range(100)}
            return {"json": {"type": "object", "properties": fields, "required": list(fields)}}
    return {"regex": f"((a|b{number}|ab|[a-z]{{1,900}}){{1,900}}){{1,900}}(?=x)"}


async def measure_compiling(url: str) -> None:
    """Print the longest time between two tokens of one stream, before grammars are compiled and from then on."""
    body = {"prompt": "Once upon a time", "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True}
    seed = random.randrange(10**6)
    came: list[float] = []
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT) as client:

        async def ask(number: int) -> int:
            asked = {"prompt": "Hi", "max_tokens": 1, "structured_outputs": slow_grammar(3 * seed + number)}
            return (await client.post("/v1/completions", json=asked)).status_code

        asking: list[Awaitable[int]] = []
        async for at in moments(client, body):
            came.append(at)
            if len(came) == NUM_ORDINARY:
                asking = [asyncio.ensure_future(ask(number)) for number in range(NUM_COMPILED)]
        statuses = await asyncio.gather(*asking)
    gaps = [1e3 * (after - before) for before, after in itertools.pairwise(came)]
    for name, part in (("before", gaps[1:NUM_ORDINARY]), ("from then on", gaps[NUM_ORDINARY:])):
        print(f"{name}: {statistics.median(part):.1f} ms between tokens, at most {max(part):.1f} ms")
    print(f"{statuses.count(200)} grammars compiled, {statuses.count(400)} refused")


def run(measure: Callable[..., Awaitable[None]], *args: Any) -> None:
    """Run one of the measurements."""

    async def main() -> None:
        await measure(*args)

    asyncio.run(main())

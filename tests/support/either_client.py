"""One scenario for both halves of a client library: what one returns is what the other awaits."""

import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any


async def got(value: Any) -> Any:
    """What a call returned, awaited where the client is asynchronous."""
    return await value if inspect.isawaitable(value) else value


async def listed(value: Any) -> list[Any]:
    """All of a stream or of a page; LiteLLM's streams can be read both ways, but only one works."""
    stream = await got(value)
    if inspect.isawaitable(value) or not hasattr(stream, "__iter__"):
        return [item async for item in stream]
    return list(stream)


@asynccontextmanager
async def opened(value: Any) -> AsyncIterator[Any]:
    """A client, or a helper that opens a stream, for the length of a block."""
    if hasattr(value, "__aenter__"):
        async with value as inside:
            yield inside
    else:
        with value as inside:
            yield inside

"""Waiting for what nobody tells of."""

import asyncio
import time
from collections.abc import Callable

POLL_SECONDS = 0.01


async def wait_until(is_over: Callable[[], bool], timeout_seconds: float) -> None:
    """Return once it is over, or the time is."""
    deadline = time.monotonic() + timeout_seconds
    while not is_over() and time.monotonic() < deadline:
        await asyncio.sleep(POLL_SECONDS)

"""Tests that are coroutines, each on an event loop of its own."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The test as pytest calls it."""

    @functools.wraps(test)
    def run(*args: Any, **values: Any) -> None:
        asyncio.run(test(*args, **values))

    return run

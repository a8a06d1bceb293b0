"""SIGTERM and SIGINT as events: the first asks to drain, the second to stop at once."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Takes the signals of the running loop, from `install` to `remove`."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()

    def install(self) -> None:
        """Take the signals; call it on the loop, in the main thread."""
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._on_signal)

    def remove(self) -> None:
        """Give the signals back to their defaults."""
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)

    async def unless_first(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of `work`, None when the first signal comes before it."""
        task = asyncio.ensure_future(work)
        signalled = asyncio.ensure_future(self.first.wait())
        await asyncio.wait({task, signalled}, return_when=asyncio.FIRST_COMPLETED)
        signalled.cancel()
        if not task.done():
            task.cancel()
        await asyncio.wait({task, signalled})
        return None if task.cancelled() else task.result()

    def _on_signal(self) -> None:
        (self.second if self.first.is_set() else self.first).set()

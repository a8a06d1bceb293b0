"""NewsBox: what the launcher tells of engines, kept from the first on until the event loop takes it."""

import asyncio
import contextlib
import queue
import time
from collections.abc import Callable

from vllm_obs.engine.child_main import Owner
from vllm_obs.engine.errors import StartupError
from vllm_obs.server.launcher_messages import ENGINE, SERVING, STARTING, EngineNews

TakeNews = Callable[[EngineNews], None]


class NewsBox:
    """Filled by the thread that watches the launcher."""

    def __init__(self, owner: Owner) -> None:
        self._news: queue.SimpleQueue[EngineNews] = queue.SimpleQueue()
        self._ring: Callable[[], None] = lambda: None
        owner.on_order(ENGINE, self._put)

    def _put(self, payload: object) -> None:
        self._news.put(EngineNews.read(payload))
        self._ring()

    def first_lives(self, engine_indices: list[int], timeout_seconds: float) -> list[EngineNews]:
        """News of a life of each engine that is there; waits for it. StartupError when it does not come in time.

        What comes later than the life that is returned stays in the box.
        """
        deadline = time.monotonic() + timeout_seconds
        lives: dict[int, EngineNews] = {}
        while len(lives) < len(engine_indices):
            try:
                news = self._news.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise StartupError(f"no engine was there within {timeout_seconds:g} s") from None
            if news.state in (STARTING, SERVING):
                lives[news.engine_index] = news
            else:
                lives.pop(news.engine_index, None)
        return [lives[index] for index in engine_indices]

    def give_to(self, take: TakeNews) -> None:
        """Call this on the running loop with what has come, and with all that comes."""
        loop = asyncio.get_running_loop()

        def empty() -> None:
            with contextlib.suppress(queue.Empty):
                while True:
                    take(self._news.get_nowait())

        def ring() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(empty)

        self._ring = ring
        empty()

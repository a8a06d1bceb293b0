"""ObserverLoop: drains in turn with answering, checkpoints each second, and tells listeners what is new."""

import asyncio
import contextlib
import time
from collections.abc import Callable

from vllm_obs.telemetry.observer import Observer

LIVE_SECONDS = 0.25
"""Seldom: each round wakes a process on cores that work. Whoever asks for something has it drained first."""
IDLE_SECONDS = 0.5
BACK_OFF = 1.5
UPKEEP_SECONDS = 1.0
CATCH_UP_SECONDS = 3.0
FINAL_SECONDS = 1.0
"""How long the last drain may take after the order to end."""


class ObserverLoop:
    """Runs an Observer in the event loop that also answers; `upkeep(now)` is called about once a second."""

    def __init__(self, observer: Observer, upkeep: Callable[[int], None]) -> None:
        self._observer = observer
        self._upkeep = upkeep
        self._ending = asyncio.Event()
        self._upkept_at = 0

    def end(self) -> None:
        """Drain what there is, then end `run`."""
        self._ending.set()

    async def run(self) -> None:
        """Until `end`: often while records come, less often while none do, with one last drain."""
        pause = LIVE_SECONDS
        while not self._ending.is_set():
            num_before = self._observer.cost.num_facts
            is_drained = self._observer.drain_slice()
            self._keep_up()
            is_live = self._observer.cost.num_facts > num_before
            pause = LIVE_SECONDS if is_live else min(IDLE_SECONDS, pause * BACK_OFF)
            await self._pause(pause if is_drained else 0.0)
        await self.catch_up(FINAL_SECONDS)
        self._upkeep(self._observer.now())

    async def catch_up(self, timeout_seconds: float = CATCH_UP_SECONDS) -> None:
        """Drain to the end of what is there now, in slices between which others get their turn."""
        deadline = time.monotonic() + timeout_seconds
        while not self._observer.drain_slice() and time.monotonic() < deadline:
            await asyncio.sleep(0)

    def _keep_up(self) -> None:
        now = time.monotonic_ns()
        if now - self._upkept_at >= UPKEEP_SECONDS * 1e9:
            self._upkept_at = now
            self._upkeep(self._observer.now())

    async def _pause(self, seconds: float) -> None:
        if not seconds:
            await asyncio.sleep(0)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ending.wait()

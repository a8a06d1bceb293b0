"""ObserverLoop: drains in turn with answering, has what was drained looked at, and has checkpoints made."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from vllm_obs.telemetry.observer import Observer

ROUND_SECONDS = 1.0
"""Seldom: each round wakes a process on cores that work, and finds cold caches (about 1 ms a round). Whoever asks
for something has it drained first."""
HEARD_ROUND_SECONDS = 0.25
"""While somebody listens to a stream. Pages draw 30 times a second, a little behind now, whatever the rounds."""
TELL_SHARE = 0.9
"""A round that comes a little early is told all the same."""
UPKEEP_SECONDS = 1.0
CATCH_UP_SECONDS = 3.0
FINAL_SECONDS = 1.0
"""How long the last drain may take after the order to end."""
NS = 1_000_000_000

_logger = logging.getLogger(__name__)


class Streams(Protocol):
    """Who listens to what happens, and how they are told."""

    @property
    def is_heard(self) -> bool:
        """Whether anybody listens."""

    def tell(self) -> None:
        """Tell what is new; does not raise."""


class ObserverLoop:
    """Runs an Observer in the event loop that also answers; `upkeep(now)` is called about once a second.

    `looks` are called as `look(now, is_drained)` after the drain of each round, and as often while there is a
    backlog: what is done now and then is done in one go, and this process wakes for nothing else. What they raise
    is logged. `streams`, set before `run`, are told after each round's drain while they are heard, and rounds are
    shorter then: one wake-up drains, tells and does the rest.
    """

    streams: Streams | None = None

    def __init__(
        self,
        observer: Observer,
        upkeep: Callable[[int], None],
        looks: Sequence[Callable[[int, bool], None]] = (),
    ) -> None:
        self._observer = observer
        self._upkeep = upkeep
        self._looks = looks
        self._is_ending = False
        self._waking = asyncio.Event()
        self._upkept_at = 0
        self._looked_at = 0
        self._told_at = 0

    def end(self) -> None:
        """Drain what there is, then end `run`."""
        self._is_ending = True
        self._waking.set()

    def wake(self) -> None:
        """Begin the next round at once: somebody has begun to listen."""
        self._waking.set()

    async def run(self) -> None:
        """A round every ROUND_SECONDS until `end`, with no pause while there is a backlog; then one last drain."""
        while not self._is_ending:
            is_drained = self._observer.drain_slice()
            self._look(is_drained)
            is_heard = self._tell()
            self._keep_up()
            seconds = HEARD_ROUND_SECONDS if is_heard else ROUND_SECONDS
            await self._pause(seconds if is_drained else 0.0)
        await self.catch_up(FINAL_SECONDS)
        self._upkeep(self._observer.now())

    async def catch_up(self, timeout_seconds: float = CATCH_UP_SECONDS) -> None:
        """Drain to the end of what is there now, in slices between which others get their turn."""
        deadline = time.monotonic() + timeout_seconds
        while not self._observer.drain_slice() and time.monotonic() < deadline:
            await asyncio.sleep(0)

    def _look(self, is_drained: bool) -> None:
        now = time.monotonic_ns()
        if is_drained or now - self._looked_at >= ROUND_SECONDS * NS:
            self._looked_at = now
            for look in self._looks:
                try:
                    look(now, is_drained)
                except Exception:  # telemetry may fail, and the next round may succeed
                    _logger.exception("a look at what was drained failed")

    def _tell(self) -> bool:
        """Tell who listens, with a backlog no more often than without; whether anybody does."""
        streams, now = self.streams, time.monotonic_ns()
        if streams is None or not streams.is_heard:
            return False
        if now - self._told_at >= TELL_SHARE * HEARD_ROUND_SECONDS * NS:
            self._told_at = now
            streams.tell()
        return True

    def _keep_up(self) -> None:
        now = time.monotonic_ns()
        if now - self._upkept_at >= UPKEEP_SECONDS * NS:
            self._upkept_at = now
            self._upkeep(self._observer.now())

    async def _pause(self, seconds: float) -> None:
        if not seconds:
            await asyncio.sleep(0)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._waking.wait()
        self._waking.clear()

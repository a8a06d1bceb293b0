"""MemoryLooks: has processes looked up in a thread, one at a time, and takes what was found on the event loop."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable

from vllm_obs.telemetry.memory_ledger import MemoryLedger, Who
from vllm_obs.telemetry.memory_ledger_glance import resident_bytes
from vllm_obs.telemetry.records import MemorySampled

WAIT_SECONDS = 5.0
"""Whoever asks waits no longer than this for all looks: what they have not found by then is told as it was."""

_logger = logging.getLogger(__name__)


class MemoryLooks:
    """Looks for the ledger of a live run, now and then and when somebody asks. Used from one event loop.

    `record` keeps what was found. A look that has begun ends, whether or not anybody still waits for it.
    """

    def __init__(
        self,
        ledger: MemoryLedger,
        record: Callable[[MemorySampled], None],
        clock: Callable[[], int] = time.monotonic_ns,
        resident: Callable[[int], int] = resident_bytes,
    ) -> None:
        self._ledger = ledger
        self._record = record
        self._clock = clock
        self._resident = resident
        self._one_at_a_time = asyncio.Lock()
        self._ticking: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._is_closed = False

    def tick(self, live: Iterable[Who]) -> None:
        """Begin to look at the process whose turn it is, unless that of the tick before is still looked at."""
        if not _is_in_loop() or self._is_closed or (self._ticking is not None and not self._ticking.done()):
            return
        who = self._ledger.next_due(live, self._clock(), self._resident)
        if who is not None:
            self._ticking = asyncio.create_task(self._tell(who), name="look at memory")

    async def refresh(self, live: Iterable[Who]) -> None:
        """Look at all of these that were not looked up lately; those who ask meanwhile wait for the same looks."""
        if self._is_closed:
            return
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._look_all(list(live)), name="look at all memory")
        await asyncio.wait({self._asking}, timeout=WAIT_SECONDS)

    async def close(self) -> None:
        """Begin no more looks. The one in a thread ends by itself, and nobody hears of it."""
        self._is_closed = True
        tasks = [task for task in (self._ticking, self._asking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _look_all(self, live: list[Who]) -> None:
        for who in live:
            await self._look(who, is_glance=False)

    async def _tell(self, who: Who) -> None:
        await self._look(who, is_glance=True)
        sample = self._ledger.sample(who)
        if sample is not None:
            self._record(sample)

    async def _look(self, who: Who, is_glance: bool) -> None:
        async with self._one_at_a_time:
            now = self._clock()
            if self._ledger.is_fresh(who, now):
                return
            errand = self._ledger.errand(who, is_glance)
            try:
                seen = await asyncio.to_thread(self._ledger.run, errand)
            except Exception:  # telemetry may fail, and the next look may succeed
                _logger.exception("%s (pid %d) could not be looked up", *who)
                return
            self._ledger.take(errand, seen, now)


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True

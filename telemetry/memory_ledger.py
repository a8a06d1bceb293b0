"""MemoryLedger: the memory of every process of the run, looked up now and then, one process at a time."""

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

from vllm_obs.telemetry.memory_ledger_holding import PARTS, Holding, Place
from vllm_obs.telemetry.memory_ledger_measure import Measured, measure
from vllm_obs.telemetry.records import MemorySampled, Record
from vllm_obs.telemetry.view import BaseView, Source

MAX_PROCESSES = 256
LOOK_NS = 60 * 10**9
"""A process is looked up so often without being asked for; looking takes the Observer some ten milliseconds."""
SETTLE_NS = 2 * 10**9
"""What has just recorded a part of its start is looked up a little later."""
FRESH_NS = 10**9
"""What was looked up so lately is not looked up again, whoever asks."""
REST = 100
"""Nor is it for so many times as long as the look took. During one the process can map and unmap nothing, as the
kernel holds its list of areas: some 20 ms for each GiB that it has in RAM, a hundredth of the time at most."""

Look = Callable[[Holding], Measured | None]
Who = tuple[str, int]
"""A process: its role and its pid."""


class MemoryLedger(BaseView):
    """What each process recorded, and what was found where it lives.

    `look` is how that is done, `clock` (ns) by which it is told how long it took.
    """

    def __init__(self, look: Look = measure, clock: Callable[[], int] = time.thread_time_ns) -> None:
        self._look = look
        self._clock = clock
        self._holdings: dict[Who, Holding] = {}
        self._fresh_until: dict[Who, int] = {}
        self._told_at: dict[Who, int] = {}
        """When what was found was handed out to be recorded last, or was to be."""
        self._found: dict[Who, Measured] = {}

    def record(self, source: Source, record: Record) -> None:
        """A sample, which the Observer itself may have recorded of another process."""
        if not isinstance(record, MemorySampled):
            return
        who = (source.role if source.pid == record.pid else record.role, record.pid)
        self._of(who).take(record)
        if record.phase and who in self._told_at:
            self._told_at[who] = min(self._told_at[who], record.sampled_at + SETTLE_NS - LOOK_NS)

    def holding(self, who: Who) -> Holding | None:
        """What that process recorded."""
        return self._holdings.get(who)

    def found(self, who: Who) -> Measured | None:
        """What was found when that process was looked up last."""
        return self._found.get(who)

    def measured(self, who: Who, now: int) -> Measured | None:
        """The process as it is now (monotonic ns), to a second or, if large, REST times as long as a look takes.

        None where it is gone or cannot be looked at.
        """
        if now < self._fresh_until.get(who, now):
            return self._found.get(who)
        begun_at = self._clock()
        found = self._look(self._of(who))
        self._fresh_until[who] = now + max(FRESH_NS, REST * (self._clock() - begun_at))
        if found is None:
            self._found.pop(who, None)
        else:
            self._found[who] = found
        return found

    def tick(self, live: Iterable[Who], now: int) -> MemorySampled | None:
        """Look one of these processes up if it is time; what is to be recorded of it."""
        live = set(live)
        for who in (self._fresh_until.keys() | self._told_at.keys()) - live:
            self._let_go(who)
        told_at, who = min(((self._told_at.get(who, 0), who) for who in live), default=(now, ("", 0)))
        if now - told_at < LOOK_NS:
            return None
        self._told_at[who] = now
        found = self.measured(who, now)
        if found is None:
            return None
        sizes = {part: found.parts[part] for part in PARTS if part in found.parts}
        return MemorySampled(*who, "", found.resident_bytes, list(sizes), list(sizes.values()), now)

    def state(self) -> list[Any]:
        """What the processes recorded; what was found can be found again."""
        return [[asdict(each), each.last] for each in self._holdings.values()]

    def restore(self, state: Any) -> None:
        """Go on from a `state`. TypeError, KeyError or ValueError if it is none."""
        for fields, last in state:
            holding = Holding(**{**fields, "last": MemorySampled(*last) if last else None})
            holding.places = [Place(*place) for place in fields["places"]]
            self._holdings[holding.role, holding.pid] = holding

    def _of(self, who: Who) -> Holding:
        holding = self._holdings.get(who)
        if holding is None:
            holding = self._holdings[who] = Holding(*who)
            if len(self._holdings) > MAX_PROCESSES:
                oldest = next(iter(self._holdings))
                del self._holdings[oldest]
                self._let_go(oldest)
        return holding

    def _let_go(self, who: Who) -> None:
        self._fresh_until.pop(who, None)
        self._told_at.pop(who, None)
        self._found.pop(who, None)

"""MemoryLedger: the memory of every process of the run, looked up now and then, one process at a time."""

import time
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from typing import Any, NamedTuple

from vllm_obs.telemetry.memory_ledger_glance import glance
from vllm_obs.telemetry.memory_ledger_holding import PARTS, UNACCOUNTED, Holding, Place
from vllm_obs.telemetry.memory_ledger_measure import Measured, measure
from vllm_obs.telemetry.records import MemorySampled, Record
from vllm_obs.telemetry.view import BaseView, Source

MAX_PROCESSES = 256
LOOK_NS = 300 * 10**9
"""A process is looked up so often without being asked for; looking takes some ten milliseconds."""
CHANGE_NS = 60 * 10**9
"""One that has much more or less in RAM than when it was looked up is looked up again after so long: a cache that
fills makes it grow for minutes."""
MIN_CHANGE_BYTES = 32 << 20
CHANGE_SHARE = 8
"""Much is over so many bytes, and over an eighth of what it had."""
SETTLE_NS = 2 * 10**9
"""What has just recorded a part of its start is looked up a little later."""
FRESH_NS = 10**9
"""What was looked up so lately is not looked up again, whoever asks."""
REST = 100
"""Nor is it for so many times as long as the look took. During one the process can map and unmap nothing, as the
kernel holds its list of areas: some 20 ms for each GiB that it has in RAM, a hundredth of the time at most."""

Who = tuple[str, int]
"""A process: its role and its pid."""


class Errand(NamedTuple):
    """A process to look up, as it was known when that was decided; shares nothing with the ledger."""

    holding: Holding
    known: dict[str, int] | None
    """Sizes of its parts as they were looked up last."""
    is_glance: bool
    """Whether a rough look is enough where the process is large."""

    @property
    def who(self) -> Who:
        """The process."""
        return self.holding.role, self.holding.pid


class Seen(NamedTuple):
    """What came of an errand (None: it is gone or cannot be looked at), and how long it took the thread."""

    found: Measured | None
    num_ns: int


Look = Callable[[Errand], Measured | None]


def look_up(errand: Errand) -> Measured | None:
    """Look at a live process."""
    return glance(errand.holding, errand.known) if errand.is_glance else measure(errand.holding)


class MemoryLedger(BaseView):
    """What each process recorded, and what was found where it lives. Used from one thread, all but `run`.

    `look` is how a process is looked up, `clock` (ns) by which it is told how long that took.
    """

    record_kinds = (MemorySampled,)

    def __init__(self, look: Look = look_up, clock: Callable[[], int] = time.thread_time_ns) -> None:
        self._look = look
        self._clock = clock
        self._holdings: dict[Who, Holding] = {}
        self._fresh_until: dict[Who, int] = {}
        self._told_at: dict[Who, int] = {}
        """When what was found was handed out to be recorded last, or was to be."""
        self._found: dict[Who, Measured] = {}
        self._looked_at: dict[Who, int] = {}

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

    def looked_at(self, who: Who) -> int:
        """When that was (monotonic ns); 0 where nothing was found."""
        return self._looked_at.get(who, 0)

    def is_fresh(self, who: Who, now: int) -> bool:
        """Whether it was looked up so lately that it is not to be again: FRESH_NS or REST times a look ago."""
        return now < self._fresh_until.get(who, now)

    def errand(self, who: Who, is_glance: bool = False) -> Errand:
        """What to `run` to look that process up."""
        holding, found = self._of(who), self._found.get(who)
        known = found.parts if found is not None else _parts_of(holding.last)
        copy = replace(holding, added=dict(holding.added), allocated=dict(holding.allocated))
        return Errand(copy, known, is_glance)

    def run(self, errand: Errand) -> Seen:
        """Look it up: tens of milliseconds or more, so in a thread that nobody waits for. Touches nothing else."""
        begun_at = self._clock()
        found = self._look(errand)
        return Seen(found, self._clock() - begun_at)

    def take(self, errand: Errand, seen: Seen, now: int) -> None:
        """What an errand that was run at `now` (monotonic ns) has brought."""
        who, found = errand.who, seen.found
        if who not in self._holdings:
            return
        if found is None or not found.is_rough:
            self._fresh_until[who] = now + max(FRESH_NS, REST * seen.num_ns)
        if found is None:
            self._found.pop(who, None)
            self._looked_at.pop(who, None)
        else:
            self._found[who], self._looked_at[who] = found, now

    def sizes(self, who: Who) -> dict[str, int]:
        """Bytes by part, and unaccounted, as found or else recorded last; empty where neither is known."""
        found, holding = self._found.get(who), self._holdings.get(who)
        if found is not None:
            return {**found.parts, UNACCOUNTED: found.unaccounted_bytes}
        last = holding.last if holding is not None else None
        if last is None:
            return {}
        unaccounted = max(0, last.resident_bytes - sum(last.part_bytes))
        return {**dict(zip(last.parts, last.part_bytes, strict=False)), UNACCOUNTED: unaccounted}

    def next_due(
        self, live: Iterable[Who], now: int, resident_bytes: Callable[[int], int] = lambda pid: 0
    ) -> Who | None:
        """The one of these processes whose turn it is, if it is anybody's; those that are gone are forgotten.

        `resident_bytes` tells what a pid has in RAM now, 0 where that is not known.
        """
        live = set(live)
        for who in (self._fresh_until.keys() | self._told_at.keys()) - live:
            self._let_go(who)
        told_at, first = min(((self._told_at.get(who, 0), who) for who in live), default=(now, ("", 0)))
        changed = (who for who in sorted(live) if self._has_changed(who, now, resident_bytes))
        due = first if now - told_at >= LOOK_NS else next(changed, None)
        if due is not None:
            self._told_at[due] = now
        return due

    def sample(self, who: Who) -> MemorySampled | None:
        """What is to be recorded of what was found last."""
        found = self._found.get(who)
        if found is None:
            return None
        sizes = {part: found.parts[part] for part in PARTS if part in found.parts}
        return MemorySampled(
            *who, "", found.resident_bytes, list(sizes), list(sizes.values()), self._looked_at[who]
        )

    def state(self) -> list[Any]:
        """What the processes recorded; what was found can be found again."""
        # Not `asdict`, which copies the thousands of addresses one by one, each second.
        names = [field.name for field in fields(Holding)]
        return [[{name: getattr(each, name) for name in names}, each.last] for each in self._holdings.values()]

    def restore(self, state: Any) -> None:
        """Go on from a `state`. TypeError, KeyError or ValueError if it is none."""
        for kept, last in state:
            holding = Holding(**{**kept, "last": MemorySampled(*last) if last else None})
            holding.places = [Place(*place) for place in kept["places"]]
            self._holdings[holding.role, holding.pid] = holding

    def _has_changed(self, who: Who, now: int, resident_bytes: Callable[[int], int]) -> bool:
        found = self._found.get(who)
        if found is None or now - self._told_at.get(who, 0) < CHANGE_NS:
            return False
        before, num_bytes = found.resident_bytes, resident_bytes(who[1])
        return num_bytes > 0 and abs(num_bytes - before) > max(MIN_CHANGE_BYTES, before // CHANGE_SHARE)

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
        self._looked_at.pop(who, None)


def _parts_of(sample: MemorySampled | None) -> dict[str, int] | None:
    return dict(zip(sample.parts, sample.part_bytes, strict=False)) if sample is not None else None

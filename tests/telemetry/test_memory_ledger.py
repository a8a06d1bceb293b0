"""Processes are looked up in turn, seldom, and what they recorded outlives the Observer."""

import msgspec
import pytest

from vllm_obs.telemetry.memory_ledger import (
    CHANGE_NS,
    FRESH_NS,
    LOOK_NS,
    MAX_PROCESSES,
    REST,
    SETTLE_NS,
    Errand,
    MemoryLedger,
    Who,
)
from vllm_obs.telemetry.memory_ledger_holding import Holding, Place
from vllm_obs.telemetry.memory_ledger_measure import Measured
from vllm_obs.telemetry.records import MemorySampled
from vllm_obs.telemetry.view import Source

API, CORE = ("APIServer_0", 1), ("EngineCore_DP0", 2)
CORE_SOURCE = Source("EngineCore_DP0", 2, 7, "0")
NOW = 1000 * LOOK_NS
MIB = 1 << 20


class Looks:
    """Finds the same of every process, and keeps whom it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.found: Measured | None = Measured(100, 80, {"heap": 30, "libraries": 60})

    def __call__(self, errand: Errand) -> Measured | None:
        self.asked.append(errand.who)
        return self.found


def measured(ledger: MemoryLedger, who: Who, now: int, is_glance: bool = False) -> Measured | None:
    """What is found of that process, looked up unless it was lately."""
    if not ledger.is_fresh(who, now):
        errand = ledger.errand(who, is_glance)
        ledger.take(errand, ledger.run(errand), now)
    return ledger.found(who)


def tick(ledger: MemoryLedger, live: list[Who], now: int) -> MemorySampled | None:
    """Look at the one whose turn it is; what is recorded."""
    who = ledger.next_due(live, now)
    return ledger.sample(who) if who is not None and measured(ledger, who, now) is not None else None


def sampled(phase: str, parts: dict[str, int], at: int = NOW, ranges: tuple[list[int], ...] = ()) -> MemorySampled:
    return MemorySampled("Worker_TP0", 2, phase, 100, list(parts), list(parts.values()), at, list(ranges))


def test_what_a_process_recorded_is_kept_under_its_own_role() -> None:
    ledger = MemoryLedger(Looks())
    ledger.record(CORE_SOURCE, sampled("import torch", {"libraries": 5, "unheard": 6}))
    parts = {"weights": 8192, "kv_cache": 4096, "objects": 0, "gpu_reserved": 9}
    ranges = ([4096, 4096, 40960, 4096], [8192, 4096], [99, 16, 50, 16], [])
    ledger.record(CORE_SOURCE, sampled("warm-up", parts, ranges=ranges))
    assert ledger.holding(CORE) == Holding(
        "EngineCore_DP0",
        2,
        added={"libraries": 5},
        allocated={"weights": 8192, "kv_cache": 4096},
        device_bytes={"gpu_reserved": 9},
        places=[Place(4096, 8192, "weights"), Place(8192, 12288, "kv_cache"), Place(40960, 45056, "weights")],
        objects=[50, 99],
    )


def test_one_process_at_a_time_is_looked_up_once_a_minute() -> None:
    looks = Looks()
    ledger = MemoryLedger(looks)
    first = tick(ledger, [API, CORE], NOW)
    assert first == MemorySampled("APIServer_0", 1, "", 100, ["libraries", "heap"], [60, 30], NOW)
    assert tick(ledger, [API, CORE], NOW + 1) is not None
    assert tick(ledger, [API, CORE], NOW + 2) is None
    assert tick(ledger, [API, CORE], NOW + LOOK_NS - 1) is None
    assert tick(ledger, [API, CORE], NOW + LOOK_NS) is not None
    assert looks.asked == [API, CORE, API]
    assert tick(ledger, [], NOW + 9 * LOOK_NS) is None


def test_one_that_grew_or_shrank_by_much_is_looked_up_before_its_turn() -> None:
    looks = Looks()
    looks.found = Measured(400 * MIB, 0, {"heap": 400 * MIB})
    ledger = MemoryLedger(looks)
    assert [tick(ledger, [API, CORE], NOW) is not None for _ in range(2)] == [True, True]

    def due(at: int, core_bytes: int) -> Who | None:
        return ledger.next_due([API, CORE], NOW + at, lambda pid: core_bytes if pid == CORE[1] else 400 * MIB)

    assert due(CHANGE_NS - 1, 900 * MIB) is None
    assert [due(CHANGE_NS, size * MIB) for size in (400, 450, 350, 0)] == [None] * 4
    assert due(CHANGE_NS, 451 * MIB) == CORE
    assert due(CHANGE_NS + 1, 451 * MIB) is None
    assert due(2 * CHANGE_NS, 349 * MIB) == CORE


def test_a_small_one_may_change_by_much_of_what_it_has() -> None:
    looks = Looks()
    looks.found = Measured(40 * MIB, 0, {"heap": 40 * MIB})
    ledger = MemoryLedger(looks)
    tick(ledger, [API], NOW)
    assert ledger.next_due([API], NOW + CHANGE_NS, lambda pid: 8 * MIB) is None
    assert ledger.next_due([API], NOW + CHANGE_NS, lambda pid: 72 * MIB) is None
    assert ledger.next_due([API], NOW + CHANGE_NS, lambda pid: 73 * MIB) == API


def test_one_that_got_further_in_its_start_is_looked_up_soon() -> None:
    looks = Looks()
    ledger = MemoryLedger(looks)
    tick(ledger, [CORE], NOW)
    ledger.record(CORE_SOURCE, sampled("warm-up", {}, NOW + 5))
    assert tick(ledger, [CORE], NOW + 5 + SETTLE_NS - 1) is None
    assert tick(ledger, [CORE], NOW + 5 + SETTLE_NS) is not None


def test_what_is_asked_for_often_is_looked_up_once_a_second() -> None:
    looks = Looks()
    ledger = MemoryLedger(looks)
    assert [measured(ledger, API, NOW + at) for at in (0, 1, FRESH_NS - 1)] == [looks.found] * 3
    assert len(looks.asked) == 1
    assert tick(ledger, [API], NOW + 2) is not None  # it is recorded all the same
    assert len(looks.asked) == 1
    looks.found = None
    assert measured(ledger, API, NOW + FRESH_NS) is None
    assert ledger.found(API) is None


def test_one_that_takes_long_to_look_up_is_left_alone_for_long() -> None:
    looks, moments = Looks(), iter([0, 30_000_000, 50_000_000, 50_000_001])
    ledger = MemoryLedger(looks, lambda: next(moments))
    for at in (0, FRESH_NS, REST * 30_000_000 - 1, REST * 30_000_000):
        assert measured(ledger, CORE, NOW + at) == looks.found
    assert len(looks.asked) == 2


def test_a_process_that_cannot_be_looked_at_is_not_asked_for_all_the_time() -> None:
    looks = Looks()
    looks.found = None
    ledger = MemoryLedger(looks)
    assert [tick(ledger, [API], NOW + at) for at in range(5)] == [None] * 5
    assert len(looks.asked) == 1


def test_what_was_recorded_survives_the_observer() -> None:
    ledger = MemoryLedger(Looks())
    ledger.record(CORE_SOURCE, sampled("import torch", {"libraries": 5}))
    ledger.record(CORE_SOURCE, sampled("warm-up", {"weights": 1}, ranges=([4096, 4096],)))
    ledger.record(Source("Observer", 3, 8, ""), MemorySampled(*CORE, "", 9, ["heap"], [4], NOW))
    saved = msgspec.msgpack.decode(msgspec.msgpack.encode(ledger.state()))
    resumed = MemoryLedger(Looks())
    resumed.restore(saved)
    assert resumed.holding(CORE) == ledger.holding(CORE)
    assert resumed.holding(CORE) is not None
    with pytest.raises((TypeError, ValueError, KeyError)):
        MemoryLedger(Looks()).restore([[{"role": 1}, None]])


def test_processes_are_bounded() -> None:
    ledger = MemoryLedger(Looks())
    for pid in range(3 * MAX_PROCESSES):
        measured(ledger, ("Worker_TP0", pid), NOW)
    assert (len(ledger._holdings), len(ledger._fresh_until), len(ledger._found)) == (MAX_PROCESSES,) * 3


def test_a_glance_keeps_no_whole_look_away_and_knows_the_parts_of_the_last() -> None:
    looks, errands = Looks(), []

    def look(errand: Errand) -> Measured | None:
        errands.append(errand)
        return looks(errand)

    ledger = MemoryLedger(look)
    ledger.record(CORE_SOURCE, MemorySampled(*CORE, "", 100, ["heap"], [9], NOW))
    looks.found = Measured(100, 80, {"heap": 30}, is_rough=True)
    assert measured(ledger, CORE, NOW, is_glance=True) == looks.found
    assert (ledger.is_fresh(CORE, NOW), ledger.looked_at(CORE)) == (False, NOW)
    looks.found = Measured(100, 80, {"heap": 40})
    assert measured(ledger, CORE, NOW + 5) == looks.found
    assert (ledger.is_fresh(CORE, NOW + 6), ledger.looked_at(CORE)) == (True, NOW + 5)
    ledger.errand(CORE).holding.added["heap"] = 5
    assert ledger.holding(CORE) == Holding(*CORE, last=MemorySampled(*CORE, "", 100, ["heap"], [9], NOW))
    assert [(errand.known, errand.is_glance) for errand in errands] == [({"heap": 9}, True), ({"heap": 30}, False)]

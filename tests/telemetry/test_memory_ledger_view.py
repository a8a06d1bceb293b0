"""Memory is told by process and in sum, with what the cache may still take and how much room there is."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_run import ScriptedRun

from vllm_obs.telemetry.catalogue import CATALOGUE
from vllm_obs.telemetry.memory_ledger import Errand, MemoryLedger
from vllm_obs.telemetry.memory_ledger_measure import Measured
from vllm_obs.telemetry.memory_ledger_view import memory_view
from vllm_obs.telemetry.memory_ledger_words import hints, sentence
from vllm_obs.telemetry.memory_metrics import NAME, MemoryMetrics
from vllm_obs.telemetry.metric_store import MetricStore
from vllm_obs.telemetry.observer import Observer
from vllm_obs.telemetry.records import MemorySampled
from vllm_obs.telemetry.ring_tail import RingTail
from vllm_obs.telemetry.view import Source

MIB = 1 << 20
FOUND = {
    "APIServer_0": Measured(100 * MIB, 80 * MIB, {"libraries": 70 * MIB, "tokenizer": 20 * MIB}),
    "EngineCore_DP0": Measured(400 * MIB, 370 * MIB, {"weights": 300 * MIB, "kv_cache": 90 * MIB}),
}


def look(errand: Errand) -> Measured | None:
    return FOUND.get(errand.holding.role)


def look_at(ledger: MemoryLedger, who: tuple[str, int], now: int) -> None:
    errand = ledger.errand(who)
    ledger.take(errand, ledger.run(errand), now)


@pytest.fixture
def ledger() -> MemoryLedger:
    return MemoryLedger(look)


@pytest.fixture
def observer(tmp_path: Path, ledger: MemoryLedger) -> Iterator[Observer]:
    with ScriptedRun(tmp_path) as run:
        run.start()
        parts = MemorySampled(
            "EngineCore_DP0", os.getpid(), "warm-up", 1, ["kv_cache"], [1024 * MIB], run.now, ([0, 1],)
        )
        run.core.record(parts)
        observer = Observer("run", tmp_path)
        observer.add_views([ledger])
        observer.tail = RingTail(tmp_path)
        while not observer.drain_slice():
            pass
        yield observer
        observer.close()


def test_each_process_is_told_with_its_parts(observer: Observer, ledger: MemoryLedger) -> None:
    assert memory_view(observer, ledger)["processes"] == []
    moment = observer.now() - 3 * 10**9
    for process in observer.state.processes.all():
        look_at(ledger, (process.role, process.pid), moment)
    view = memory_view(observer, ledger)
    api, core = view["processes"]
    assert (api["is_measured"], api["is_rough"], api["looked_at"]) == (True, False, moment)
    assert 3 <= api["age_seconds"] < 60
    assert (api["role"], api["resident_bytes"], api["pss_bytes"]) == ("APIServer_0", 100 * MIB, 80 * MIB)
    assert (api["accounted"], api["unaccounted_bytes"]) == (pytest.approx(0.9), 10 * MIB)
    assert core["parts"] == [
        {"part": "weights", "bytes": 300 * MIB, "share": 0.75, "allocated_bytes": None},
        {"part": "kv_cache", "bytes": 90 * MIB, "share": 0.225, "allocated_bytes": 1024 * MIB},
    ]
    assert view["total"]["parts"] == {
        "libraries": 70 * MIB, "weights": 300 * MIB, "kv_cache": 90 * MIB, "tokenizer": 20 * MIB
    }  # fmt: skip
    assert (view["total"]["resident_bytes"], view["total"]["pss_bytes"]) == (500 * MIB, 450 * MIB)
    assert view["total"]["accounted"] == pytest.approx(0.96)
    (cache,) = view["kv_cache"]
    assert (cache["reserved_bytes"], cache["resident_bytes"], cache["active_bytes"]) == (1024 * MIB, 90 * MIB, 0)
    assert view["limits"]["headroom_bytes"] <= view["limits"]["host_bytes"]
    assert view["says"] == (
        "500.0 MiB are in RAM in 2 processes (450.0 MiB with what they share counted once); most of it is weights "
        "(300.0 MiB), the KV cache (90.0 MiB) and the interpreter and its libraries (70.0 MiB)."
    )


def test_memory_of_which_no_part_is_known_is_told_as_a_sum() -> None:
    total = {"resident_bytes": 5 * MIB, "pss_bytes": None, "parts": {}}
    assert sentence({"total": total, "processes": [{}]}) == "5.0 MiB are in RAM in 1 process."


def test_of_a_recording_what_was_looked_up_last_is_told(observer: Observer, ledger: MemoryLedger) -> None:
    observer.is_live = False
    assert memory_view(observer, ledger)["processes"] == []
    source = observer.state.engines["0"].source
    ledger.record(source, MemorySampled("EngineCore_DP0", os.getpid(), "", 50, ["weights"], [40], 9))
    view = memory_view(observer, ledger)
    (core,) = view["processes"]
    assert (core["is_measured"], core["resident_bytes"], core["accounted"]) == (False, 50, pytest.approx(0.8))
    assert (core["looked_at"], core["age_seconds"]) == (9, pytest.approx((observer.now() - 9) / 1e9, abs=60))
    assert (core["pss_bytes"], view["total"]["pss_bytes"], view["limits"]) == (None, None, {})
    assert view["hints"] == ["This is a recording: of each process this is what was recorded last."]


def view_of(reserved: int, resident: int, room: int, **device: int) -> dict[str, Any]:
    return {
        "kv_cache": [{"reserved_bytes": reserved, "resident_bytes": resident}],
        "limits": {"headroom_bytes": room},
        "processes": [{"device_bytes": device, "is_measured": True}],
    }


def test_a_cache_that_may_outgrow_the_room_is_warned_of() -> None:
    (hint,) = hints(view_of(4096 * MIB, 96 * MIB, 1000 * MIB))
    assert "may still take 3.91 GiB and only 1000.0 MiB are free" in hint
    assert hints(view_of(4096 * MIB, 96 * MIB, 5000 * MIB)) == []
    assert hints(view_of(4096 * MIB, 96 * MIB, 1000 * MIB, gpu_reserved=1)) == []


def test_levels_of_a_process_that_is_gone_are_zero(ledger: MemoryLedger) -> None:
    store = MetricStore(CATALOGUE)
    metrics = MemoryMetrics(store, ledger)
    who = ("EngineCore_DP0", 2)
    metrics.refresh([who])
    assert store.value(NAME, "EngineCore", "DP0", "weights").number == 0
    look_at(ledger, who, 10**18)
    metrics.refresh([who])
    levels = {labels[2]: value.number for labels, value in store.families[NAME].series.items() if value.number}
    assert levels == {"weights": 300 * MIB, "kv_cache": 90 * MIB, "unaccounted": 10 * MIB}
    metrics.refresh([])
    assert {value.number for value in store.families[NAME].series.values()} == {0}


def test_levels_of_who_died_with_an_observer_are_zero_and_the_others_go_on(ledger: MemoryLedger) -> None:
    store, resumed_store = MetricStore(CATALOGUE), MetricStore(CATALOGUE)
    gone, lives = ("EngineCore_DP0", 2), ("APIServer_0", 1)
    for who in (gone, lives):
        look_at(ledger, who, 10**18)
    MemoryMetrics(store, ledger).refresh([gone, lives])
    resumed_store.restore(store.state())
    resumed = MemoryLedger(look)
    parts = {"libraries": 70 * MIB, "tokenizer": 20 * MIB}
    found = MemorySampled(*lives, "", 100 * MIB, list(parts), list(parts.values()), 10**18)
    resumed.record(Source("Observer", 3, 8, ""), found)
    MemoryMetrics(resumed_store, resumed).refresh([lives])
    levels = {
        labels: value.number for labels, value in resumed_store.families[NAME].series.items() if value.number
    }
    assert levels == {
        ("APIServer", "0", "libraries"): 70 * MIB,
        ("APIServer", "0", "tokenizer"): 20 * MIB,
        ("APIServer", "0", "unaccounted"): 10 * MIB,
    }

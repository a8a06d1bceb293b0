"""The first answer says how the run is: who stands still, and who was told to."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from scripted_run import ScriptedRun

from vllm_obs.telemetry.inspect_state import Health, health_of
from vllm_obs.telemetry.observer import Observer
from vllm_obs.telemetry.records import EngineStateChanged
from vllm_obs.telemetry.ring_tail import RingTail

S = 10**9


@pytest.fixture
def run(tmp_path: Path) -> Iterator[ScriptedRun]:
    with ScriptedRun(tmp_path) as run:
        run.start()
        yield run


@pytest.fixture
def observer(run: ScriptedRun, tmp_path: Path) -> Iterator[Observer]:
    observer = Observer("run", tmp_path)
    observer.tail = RingTail(tmp_path)
    yield observer
    observer.close()


def health(observer: Observer, now: int) -> Health:
    while not observer.drain_slice():
        pass
    return health_of(observer, now)


def test_work_without_a_step_is_a_stall(run: ScriptedRun, observer: Observer) -> None:
    run.submit("a")
    assert health(observer, run.now + 9 * S) == Health("ok", "0 running, 1 waiting.")
    assert health(observer, run.now + 11 * S) == Health(
        "stalled", "Engine 0 has 0 running and 1 waiting and has ended no step for 11 s."
    )


def test_a_paused_engine_does_as_it_was_told(run: ScriptedRun, observer: Observer) -> None:
    run.core.record(EngineStateChanged("paused", run.now))
    run.submit("a")
    assert health(observer, run.now + 3600 * S) == Health(
        "paused", "Paused by order: engine 0 with 0 running and 1 waiting."
    )
    run.core.record(EngineStateChanged("awake", run.pass_time(3_600_000)))
    assert health(observer, run.now + S) == Health("ok", "0 running, 1 waiting.")
    assert health(observer, run.now + 11 * S).word == "stalled"

"""How a run is, in a word: what the watchdog found comes before all that only looks as if work went on."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripted_run import ScriptedRun

from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.observer import Observer
from vllm_obs.telemetry.recording import save_recording
from vllm_obs.telemetry.records import EngineStateChanged, IncidentFiled, ProcessExited, StallBegun
from vllm_obs.telemetry.replay import open_replay
from vllm_obs.telemetry.ring_tail import RingTail
from vllm_obs.telemetry.run_health import Health, deaths_of, health_of, with_incident
from vllm_obs.telemetry.watchdog_log import Stall

S = 10**9
SAYS = "Engine 0 has 0 running and 1 waiting, and does not move: EngineCore_DP0 (pid 7) is stopped by a signal."


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


def health(observer: Observer, now: int, *stalls: StallBegun) -> Health:
    while not observer.drain_slice():
        pass
    return health_of(observer, now, stalls=stalls)


def test_a_stall_that_is_over_does_not_read_as_one_that_lasts() -> None:
    begun = StallBegun("0", "Worker_TP1", 42, 1, "executing", 9, "T", SAYS, 100 * S, 110 * S)
    filed = IncidentFiled("20260101-stalled", "stalled", "Worker_TP1", 42, SAYS, 110 * S, 111 * S)
    stalled, well = Health("stalled", "It stands still."), Health("ok", "1 running, 0 waiting.")
    lasting, over = Stall(begun), Stall(begun, 114 * S)
    assert [
        with_incident(stalled, filed, [lasting], 112 * S).says,
        with_incident(well, filed, [over], 126 * S).says,
        with_incident(
            well, filed, [over._replace(begun=begun._replace(engine="", process_state="S"))], 126 * S
        ).says,
        with_incident(well, filed, [], 126 * S).says,
    ] == [
        "It stands still. Incident: 20260101-stalled.",
        "1 running, 0 waiting. Last incident (20260101-stalled): Worker_TP1 (pid 42) held engine 0 up for 14.0 s, "
        "stopped by a signal, and that ended 12 s ago.",
        "1 running, 0 waiting. Last incident (20260101-stalled): Worker_TP1 (pid 42) stood still for 14.0 s, and "
        "that ended 12 s ago.",
        f"1 running, 0 waiting. Last incident (20260101-stalled): {SAYS}",
    ]


def test_a_stall_is_told_with_how_long_it_has_lasted(run: ScriptedRun, observer: Observer) -> None:
    run.submit("a")
    stall = StallBegun("0", "EngineCore_DP0", 7, -1, "executing", 3, "T", SAYS, run.now, run.now + 10 * S)
    server = stall._replace(engine="", role="APIServer_0", says="An API server hangs.", stuck_at=run.now + 60 * S)
    assert health(observer, run.now + 75 * S, stall, server) == Health(
        "stalled", f"{SAYS} It has stood still for 75 s. An API server hangs. It has stood still for 15 s."
    )


def test_work_alone_is_no_stall(run: ScriptedRun, observer: Observer) -> None:
    run.submit("a")
    assert health(observer, run.now + 3600 * S) == Health("ok", "0 running, 1 waiting.")


def test_a_paused_engine_does_as_it_was_told(run: ScriptedRun, observer: Observer) -> None:
    run.core.record(EngineStateChanged("paused", run.now))
    run.submit("a")
    says = "Paused by order: engine 0 with 0 running and 1 waiting."
    assert health(observer, run.now + 3600 * S) == Health("paused", says)
    run.core.record(EngineStateChanged("awake", run.pass_time(3_600_000)))
    assert health(observer, run.now + S) == Health("ok", "0 running, 1 waiting.")


def test_while_another_engine_starts_it_says_so(run: ScriptedRun, observer: Observer, tmp_path: Path) -> None:
    run.api.record(ProcessExited("EngineCore_DP0", 7, -9, run.now))
    run.api.doing(Activity.RESTARTING)
    health(observer, run.now)
    assert health_of(observer, run.now, tmp_path) == Health(
        "restarting",
        "The engine died, and another is being started. EngineCore_DP0 (pid 7) died of SIGKILL 0.0 s ago.",
    )
    run.api.doing(Activity.SERVING)
    assert health_of(observer, run.now, tmp_path).word == "idle"


def test_an_end_that_was_ordered_is_no_death(run: ScriptedRun, observer: Observer) -> None:
    run.api.record(ProcessExited("Worker_TP0", 8, -9, run.now, was_told=True))
    run.api.record(ProcessExited("Worker_TP1", 9, -9, run.now))
    health(observer, run.now)
    assert [death.says for death in deaths_of(observer, run.now)] == [
        "Worker_TP1 (pid 9) died of SIGKILL 0.0 s ago."
    ]


def test_a_recording_tells_how_it_is_at_its_end_before_what_died_earlier(run: ScriptedRun, tmp_path: Path) -> None:
    run.serve("done")
    run.api.record(ProcessExited("Worker_TP7", 77, -9, run.now))
    for number in range(40):
        run.pass_time(500)
        run.serve(f"later{number}")
    save_recording(tmp_path, tmp_path / "saved.rec", 600 * 10**9)
    service = open_replay(tmp_path / "saved.rec", "127.0.0.1", 0)
    service.observer.close()
    says = health_of(service.observer, service.observer.now()).says
    assert "time stands still. At its end: Ready; nothing is under way. " in says
    assert re.search(r"Worker_TP7 \(pid 77\) died of SIGKILL .* before the end", says)

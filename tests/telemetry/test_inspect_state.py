"""The first answer says how the run is: who stands still, who was told to, who died, and what was there then."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripted_run import MODEL, ScriptedRun

from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.flight_recorder import FlightRecorder
from vllm_obs.telemetry.inspect_context import InspectContext
from vllm_obs.telemetry.inspect_state import run_view
from vllm_obs.telemetry.observer import Observer
from vllm_obs.telemetry.recording import save_recording
from vllm_obs.telemetry.records import ProcessExited, StallBegun, StallEnded
from vllm_obs.telemetry.replay import open_replay
from vllm_obs.telemetry.ring_tail import RingTail
from vllm_obs.telemetry.run_health import Health, deaths_of, health_of

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


def test_a_stall_of_a_recording_is_told_with_its_end(run: ScriptedRun, tmp_path: Path) -> None:
    run.serve("done")
    stall = StallBegun("0", "Worker_TP0", 7, 0, "executing", 3, "T", "It stands still.", run.now, run.now + 10 * S)
    own = FlightRecorder(tmp_path / "Observer.ring", "Observer", 1 << 16)
    own.record(stall)
    own.record(stall._replace(engine="1"))
    own.record(StallEnded("0", "Worker_TP0", 7, stall.stuck_at, run.now + 12 * S))
    own.close()
    save_recording(tmp_path, tmp_path / "saved.rec", 600 * S)
    view = run_view(replay_of(tmp_path / "saved.rec"))
    assert view["stalls"] == {
        "current": [],
        "states": {},
        "past": [
            {**stall._asdict(), "ended_at": run.now + 12 * S},
            {**stall._replace(engine="1")._asdict(), "ended_at": None},
        ],
    }


def test_an_api_server_that_ends_is_draining(run: ScriptedRun, observer: Observer, tmp_path: Path) -> None:
    run.submit("a")
    run.step("a")
    run.api.doing(Activity.STOPPING)
    while not observer.drain_slice():
        pass
    says = "The server ends: no request is let in. 1 running, 0 waiting."
    assert health_of(observer, run.now, tmp_path) == Health("draining", says)
    run.api.doing(Activity.SERVING)
    assert health_of(observer, run.now, tmp_path).word == "ok"


def test_a_model_without_numbers_is_broken(run: ScriptedRun, observer: Observer, tmp_path: Path) -> None:
    run.serve("done")
    run.api.doing(Activity.BROKEN)
    while not observer.drain_slice():
        pass
    found = health_of(observer, run.now, tmp_path)
    assert found.word == "broken"
    assert found.says.startswith("The model gave no numbers in its last answers")
    run.api.doing(Activity.SERVING)
    assert health_of(observer, run.now, tmp_path).word == "idle"


def test_a_recording_tells_of_a_death_and_of_the_engine_as_it_was(run: ScriptedRun, tmp_path: Path) -> None:
    run.serve("done")
    run.submit("cut off")
    run.step("cut off")
    run.api.record(ProcessExited("EngineCore_DP0", os.getpid(), -9, run.now))
    run.core.close()
    run.pass_time(500)
    run.refuse("after it")
    run.api.close()
    save_recording(tmp_path, tmp_path / "saved.rec", 600 * S)
    view = run_view(replay_of(tmp_path / "saved.rec"))
    assert view["models"] == [MODEL]
    (engine,) = view["engines"]
    assert (engine["engine"], engine["state"], engine["last_step"]) == ("0", "dead", 4)
    assert (engine["num_running"], engine["last_plan"]["num_running"]) == (0, 1)
    assert engine["last_plan"]["num_active_blocks"] == 2
    assert view["health"]["word"] == "recording"
    died, left = ") died of SIGKILL 0.5 s before the end.", "gone before 1 request had ended."
    for said in ("EngineCore_DP0 (pid ", died, left):
        assert said in view["health"]["says"]
    assert {(death["role"], death["exit_code"]) for death in view["deaths"]} == {
        ("EngineCore_DP0", -9),
        ("APIServer_0", None),
    }
    # Nothing is left out because its second was not over.
    assert view["throughput"]["10s"]["steps_per_second"] > 0


def test_a_recording_that_is_cut_says_so(run: ScriptedRun, tmp_path: Path) -> None:
    run.serve("done")
    saved = tmp_path / "saved.rec"
    save_recording(tmp_path, saved, 600 * S)
    saved.write_bytes(saved.read_bytes()[:-12])
    view = run_view(replay_of(saved))
    assert "time stands still. But the file is cut: its end is missing" in view["health"]["says"]
    assert view["telemetry"]["caveat"].startswith("the file is cut")


def test_a_death_is_told_of_for_a_while(run: ScriptedRun, observer: Observer) -> None:
    run.api.record(ProcessExited("Worker_DP0_TP1", 77, 3, run.now))
    health(observer, run.now)
    assert [death.says for death in deaths_of(observer, run.now + 2 * S)] == [
        "Worker_DP0_TP1 (pid 77) ended with exit code 3 2.0 s ago."
    ]
    assert deaths_of(observer, run.now + 301 * S) == []


def replay_of(path: Path) -> InspectContext:
    service = open_replay(path, "127.0.0.1", 0)
    service.observer.close()
    return service.context

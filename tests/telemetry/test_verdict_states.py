"""Where nothing is served the verdict says so first, and what comes next; a recording, how it came to its end."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_run import ScriptedRun

from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.observer_config import ObserverConfig
from vllm_obs.telemetry.observer_process import open_service
from vllm_obs.telemetry.observer_service import ObserverService
from vllm_obs.telemetry.recording import save_recording
from vllm_obs.telemetry.records import EngineRestarted, ProcessExited, StallBegun
from vllm_obs.telemetry.replay import open_replay
from vllm_obs.telemetry.routes_verdict import verdict_view
from vllm_obs.telemetry.verdict_states import state_findings

S = 10**9
NUM_STEPS = 500
KILLED = -9
CORE, PID = "EngineCore_DP0", os.getpid()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[ScriptedRun]:
    """A server whose places are all taken, for five seconds up to about now."""
    with ScriptedRun(tmp_path, time.monotonic_ns() - 6 * S, 1 << 22) as run:
        run.start()
        for name in ("a", "b", "w"):
            run.submit(name, max_tokens=9000)
        for _ in range(NUM_STEPS):
            run.step("a", "b", head_reason="max_num_seqs")
        yield run


@pytest.fixture
def service(run: ScriptedRun, tmp_path: Path) -> Iterator[ObserverService]:
    service = open_service(ObserverConfig(run_dir=tmp_path, inspect_host="127.0.0.1", inspect_port=0))
    yield service
    service.views.close(0)
    service.observer.close()


def verdict(service: ObserverService, window: str = "10s") -> dict[str, Any]:
    while not service.observer.drain_slice():
        pass
    return verdict_view(service.context, window)


def die(run: ScriptedRun) -> None:
    """The engine is killed, and its owner sees it."""
    run.api.record(ProcessExited(CORE, PID, KILLED, run.now))
    run.core.close()


def names(document: dict[str, Any]) -> list[str]:
    return [finding["name"] for finding in document["findings"]]


def test_before_anything_happens_it_advises(service: ObserverService) -> None:
    assert names(verdict(service)) == ["max_num_seqs"]


def test_a_dead_engine_comes_before_all_advice(run: ScriptedRun, service: ObserverService) -> None:
    verdict(service)
    die(run)
    document = verdict(service)
    assert (document["word"], document["severity"], names(document)) == ("engine_dead", "severe", ["engine_dead"])
    assert document["says"].startswith(f"The engine is dead: {CORE} (pid {PID}) died of SIGKILL ")
    assert document["says"].endswith(
        " ago. Another is started in its place, or the server ends where --engine-restarts allows no more."
    )
    (finding,) = document["findings"]
    assert (finding["evidence"]["role"], finding["evidence"]["exit_code"]) == (CORE, KILLED)
    assert "--max-num-seqs" not in str(document)


def test_while_another_engine_starts_it_says_what_requests_get(run: ScriptedRun, service: ObserverService) -> None:
    die(run)
    run.api.doing(Activity.RESTARTING)
    document = verdict(service)
    assert (document["word"], names(document)) == ("restarting", ["restarting"])
    assert document["says"].startswith(
        f"The engine died and another is being started: {CORE} (pid {PID}) died of SIGKILL "
    )
    assert document["says"].endswith(" ago. Until it is ready new requests get 503 with Retry-After.")
    run.api.doing(Activity.SERVING)
    service.views.verdict.show(service.observer.now())
    store = service.views.metrics.store
    shown = {word: store.value("vllm_obs_verdict", word).number for word in ("engine_dead", "restarting")}
    assert shown == {"engine_dead": 1, "restarting": 0}


def test_a_server_that_ends_says_so_and_who_is_left(run: ScriptedRun, service: ObserverService) -> None:
    run.api.doing(Activity.STOPPING)
    document = verdict(service)
    assert (document["word"], names(document)) == ("draining", ["draining", "max_num_seqs"])
    assert document["says"] == (
        "The server ends: no request is let in, and the 2 that run and 1 that wait have until "
        "--shutdown-timeout. Also: max_num_seqs."
    )


def test_how_it_was_is_told_without_what_came_later(run: ScriptedRun, service: ObserverService) -> None:
    die(run)
    verdict(service)
    found = verdict_view(service.context, "10s", run.now)
    assert names(found) == ["max_num_seqs"]


def test_a_server_that_takes_no_requests_is_not_idle(service: ObserverService) -> None:
    begun = StallBegun("", "APIServer_0", 42, -1, "serving", 0, "T", "An API server hangs.", 1 * S, 11 * S)
    observer = service.observer
    verdict(service)
    assert state_findings(observer, 21 * S, stalls=[begun])[0].says == (
        "An API server hangs. It has stood still for 20 s."
    )
    service.views.verdict.states = lambda now: state_findings(observer, 21 * S, stalls=[begun])
    long_after = observer.now() + 600 * S
    assert service.views.verdict.document("10s", long_after)["word"] == "stalled_server"
    (finding,) = service.views.verdict.document("10s", long_after)["findings"]
    assert finding["helps"] == ["`kill -CONT 42`, which lets it go on"]


@pytest.mark.parametrize(("num_restarts", "says"), [(0, "The engine died once"), (3, "The engine died 4 times")])
def test_a_recording_tells_that_the_server_gave_up(
    num_restarts: int, says: str, run: ScriptedRun, tmp_path: Path
) -> None:
    for generation in range(1, num_restarts + 1):
        run.api.record(EngineRestarted("0", generation, "", 1, run.now, run.now))
    die(run)
    run.close()
    found = replayed(tmp_path)
    assert (found["word"], found["severity"]) == ("engine_dead", "severe")
    assert found["says"].startswith(f"{says} and the server gave up: {CORE} (pid {PID}) died of SIGKILL ")
    assert names(found) == ["engine_dead", "max_num_seqs"]


def test_a_recording_of_a_server_that_ended_in_order_is_of_no_death(run: ScriptedRun, tmp_path: Path) -> None:
    run.api.record(ProcessExited(CORE, PID, 0, run.now))
    run.close()
    assert names(replayed(tmp_path)) == ["max_num_seqs"]


def replayed(run_dir: Path) -> dict[str, Any]:
    """The verdict of a recording of the run."""
    path = run_dir / "run.rec"
    save_recording(run_dir, path, 3600 * S)
    service = open_replay(path, "127.0.0.1", 0)
    service.observer.close()
    return verdict_view(service.context, "1m")

"""A real Observer that sees an engine die files it, and its inspector, its metrics and its log tell of it."""

import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from broken_run import NUM_STEPS, PID, broken_run
from observed_server import await_that
from observer_child import ObserverChild, observer_over
from scripted_run import ScriptedRun

from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.records import ProcessExited

KILLED = ProcessExited("EngineCore_DP0", PID, -9, 0)


@pytest.fixture(scope="module")
def observer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObserverChild]:
    run_dir = tmp_path_factory.mktemp("runs") / "20260101-000000-7"
    broken_run(run_dir, [KILLED])
    with observer_over(run_dir) as observer:
        await_that(lambda: any(run_dir.glob("incidents/*")), 20)
        yield observer


def test_it_is_listed(observer: ObserverChild) -> None:
    (incident,) = observer.get("/inspect/incidents")["incidents"]
    assert (incident["cause"], incident["role"], incident["pid"]) == ("killed", "EngineCore_DP0", PID)
    assert incident["says"].startswith(f"EngineCore_DP0 (pid {PID}) was killed by SIGKILL")


def test_it_can_be_read_whole(observer: ObserverChild) -> None:
    (incident,) = observer.get("/inspect/incidents")["incidents"]
    content = observer.get(f"/inspect/incidents/{incident['incident']}")
    assert len(content["steps"]) == NUM_STEPS + 3
    assert len(content["open_requests"]) == 2


def test_what_can_be_read_of_a_damaged_one_is_read(observer: ObserverChild) -> None:
    shelf = observer.run_dir / "incidents"
    (whole,) = shelf.iterdir()
    damaged = shutil.copytree(whole, shelf / "20260101-000000-killed-Worker_TP9")
    try:
        rows = [json.loads(line) for line in (whole / "steps.jsonl").read_text().splitlines()]
        older = [{name: value for name, value in row.items() if name != "engine"} for row in rows]
        (damaged / "steps.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in older))
        for document in ("{}", "cut off"):
            (damaged / "incident.json").write_text(document)
            content = observer.get(f"/inspect/incidents/{damaged.name}")
            assert content["incident"]["says"] == "What happened cannot be read any more."
            assert content["damaged"]
            assert content["steps"] == [{**row, "engine": "0"} for row in older]
    finally:
        shutil.rmtree(damaged)


@pytest.mark.parametrize("name", ["nothing", "..%2f..", "20260101-000000-killed-EngineCore_DP0"])
def test_what_is_not_there_is_not_found(observer: ObserverChild, name: str) -> None:
    assert observer.ask(f"/inspect/incidents/{name}").status == 404


def test_the_state_and_the_metrics_mention_it(observer: ObserverChild) -> None:
    state = observer.get("/inspect/state")
    assert state["last_incident"]["cause"] == "killed"
    assert f"Last incident ({state['last_incident']['incident']}): EngineCore_DP0" in state["health"]["says"]
    shown = observer.ask("/metrics").body.decode()
    assert 'vllm_obs_incidents_total{cause="killed"} 1.0' in shown
    assert 'vllm_obs_incidents_total{cause="stalled"} 0.0' in shown


def test_the_observer_logs_into_the_run_directory(observer: ObserverChild) -> None:
    assert "[Observer] vllm_obs.telemetry.incident: incident " in (observer.run_dir / "Observer.log").read_text()


def test_a_stall_that_is_over_is_told_as_over_everywhere(tmp_path: Path) -> None:
    with ScriptedRun(tmp_path) as run, observer_over(tmp_path, stall_timeout=1.0) as observer:
        run.start()
        run.submit("a")
        run.core.doing(Activity.EXECUTING)
        await_that(lambda: observer.get("/inspect/incidents")["incidents"], 30)
        (lasting,) = observer.get("/inspect/incidents")["incidents"]
        assert lasting["ended_at"] is None
        for _ in range(100):
            run.core.advance()
            time.sleep(0.05)
            (incident,) = observer.get("/inspect/incidents")["incidents"]
            if incident["ended_at"] is not None:
                break
        says = observer.get("/inspect/state")["last_incident"]["says"]
        shown = observer.ask("/metrics").body.decode()
    assert re.fullmatch(
        r"Engine 0 stood still for \d+\.\d s and moved again: EngineCore_DP0 \(pid \d+\) did not get on, "
        r"last seen executing in step 0\. 1 request was open\.",
        says,
    )
    assert incident["says"] == says
    assert 'vllm_obs_incidents_total{cause="stalled"} 1.0' in shown

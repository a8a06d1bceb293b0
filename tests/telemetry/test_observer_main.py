"""A real Observer process over the rings of a scripted run: READY, answers, restarts that lose nothing, an end."""

import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from observer_child import ObserverChild, Reply, observer_over
from process_watch import gone
from scripted_run import MODEL, ScriptedRun

from vllm_obs.engine.child import spawn
from vllm_obs.engine.child_pipe import READY
from vllm_obs.engine.errors import StartupError
from vllm_obs.telemetry.observer_process import END_SECONDS

WAIT_SECONDS = 30.0


@pytest.fixture
def run(tmp_path: Path) -> Iterator[ScriptedRun]:
    with ScriptedRun(tmp_path) as run:
        run.start()
        yield run


def samples(reply: Reply) -> dict[str, float]:
    """The counters in a text exposition."""
    assert reply.status == 200
    found = re.findall(r"^(\S+_total\S*|\S+_count\S*|\S+_bucket\S*) (\S+)$", reply.body.decode(), re.MULTILINE)
    return {name: float(number) for name, number in found}


def test_ready_says_where_it_listens_and_so_does_a_file(run: ScriptedRun, tmp_path: Path) -> None:
    with observer_over(tmp_path, api_address="http://127.0.0.1:8000") as observer:
        said = (tmp_path / "inspect.json").read_text()
        assert f'"address":"{observer.url}"' in said
        assert '"api_address":"http://127.0.0.1:8000"' in said
        assert observer.get("/inspect/version")["run"] == tmp_path.name
        assert Path(f"/proc/{observer.child.pid}/comm").read_text().strip() == "vllm-obs::Observer"[:15]
        modes = {
            name: stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("observer.sock", "inspect.json")
        }
        assert modes == {"observer.sock": 0o600, "inspect.json": 0o600}
    assert observer.child.exit_code == 0
    assert not (tmp_path / "inspect.json").exists()
    assert not (tmp_path / "observer.sock").exists()


def test_where_traces_cannot_go_all_else_works_and_it_is_counted(run: ScriptedRun, tmp_path: Path) -> None:
    run.serve("a")
    with observer_over(tmp_path, otlp_endpoint="http://[::1:4317") as observer:
        counted = samples(observer.ask_unix("/metrics"))
        assert counted['vllm_obs_exporter_failures_total{signal="spans"}'] == 1
        assert counted['vllm_obs_exporter_failures_total{signal="metrics"}'] == 0
        assert observer.get("/inspect/state")["requests"]["num_ended"] == 1


def test_a_port_that_is_taken_gives_way_to_a_free_one(run: ScriptedRun, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with observer_over(tmp_path) as first, observer_over(other, inspect_port=first.port) as second:
        assert second.port != first.port
        assert second.get("/inspect/version")["run"] == "other"


def test_metrics_are_answered_over_both_listeners_after_a_drain(run: ScriptedRun, tmp_path: Path) -> None:
    name = f'vllm:generation_tokens_total{{engine="0",model_name="{MODEL}"}}'
    with observer_over(tmp_path, served_model_names=[MODEL]) as observer:
        for number in range(5):
            run.catch_up()
            run.serve(f"r{number}", num_output=4)
            reply = observer.ask_unix("/metrics")
            assert samples(reply)[name] == 4 * (number + 1)
        assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
        openmetrics = observer.ask("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
        assert openmetrics.headers["content-type"].startswith("application/openmetrics-text")
        assert openmetrics.body.endswith(b"# EOF\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_do_not_end_it(run: ScriptedRun, tmp_path: Path, number: signal.Signals) -> None:
    with observer_over(tmp_path) as observer:
        os.kill(observer.child.pid, number)
        assert observer.get("/inspect/version")["is_live"] is True
        assert observer.child.exit_code is None


def test_it_drains_before_it_ends(run: ScriptedRun, tmp_path: Path) -> None:
    with observer_over(tmp_path) as observer:
        observer.get("/inspect/state")
        run.catch_up()
        run.serve("late")
        observer.child.ask_to_stop()
        assert observer.child.wait(3 * END_SECONDS)
    with observer_over(tmp_path) as again:
        state = again.get("/inspect/state")
        assert state["telemetry"]["resumed_at"] is not None
        assert (
            samples(again.ask_unix("/metrics"))[
                'vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"}'
            ]
            == 1.0
        )


def test_it_ends_when_its_owner_dies_and_takes_away_what_would_hold_up_a_reader(
    run: ScriptedRun, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "EngineCore_DP0.ask")  # of a process that was killed
    script = (
        "import time; from vllm_obs.engine.child import spawn\n"
        f"child = spawn('vllm_obs.telemetry.observer_main', 'Observer', {{'run_dir': {str(tmp_path)!r}}})\n"
        "child.wait_for('READY', 60); print(child.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        owner.kill()
    assert gone(pid, WAIT_SECONDS)
    assert [path for path in tmp_path.rglob("*") if not (path.is_file() or path.is_dir())] == []


def test_counters_never_go_back_over_a_kill(run: ScriptedRun, tmp_path: Path) -> None:
    before: dict[str, float] = {}
    for life in range(3):
        with observer_over(tmp_path) as observer:
            after = samples(observer.ask_unix("/metrics"))
            went_back = {
                name: (number, after.get(name)) for name, number in before.items() if after.get(name, 0) < number
            }
            assert went_back == {}
            run.catch_up()
            run.submit(f"open{life}", max_tokens=5)
            run.step(f"open{life}")
            for number in range(10):
                run.serve(f"life{life}-{number}", num_output=2)
            before = samples(observer.ask_unix("/metrics"))
            os.kill(observer.child.pid, signal.SIGKILL)
            assert observer.child.wait(WAIT_SECONDS)
            # What is recorded while nobody observes is not lost either.
            run.step(f"open{life}")
            run.finish(f"open{life}")
    with observer_over(tmp_path) as observer:
        totals = samples(observer.ask_unix("/metrics"))
        labels = f'engine="0",model_name="{MODEL}"'
        assert totals[f"vllm:generation_tokens_total{{{labels}}}"] == 3 * (2 + 20)
        assert totals[f"vllm:e2e_request_latency_seconds_count{{{labels}}}"] == 33
        assert observer.get("/inspect/invariants")["num_broken"] == 0
        assert len(list(tmp_path.glob("Observer*.ring"))) <= 4


def test_a_checkpoint_of_something_else_is_left_behind(run: ScriptedRun, tmp_path: Path) -> None:
    (tmp_path / "observer.checkpoint").write_bytes(b"\x93 not a checkpoint")
    run.serve("a")
    with observer_over(tmp_path) as observer:
        assert observer.get("/inspect/state")["telemetry"]["resumed_at"] is None
        assert len(observer.get("/inspect/requests?state=ended")["requests"]) == 1


def test_overrun_is_counted_and_admitted(tmp_path: Path) -> None:
    with ScriptedRun(tmp_path, engine_bytes=16_384) as run:
        run.start()
        for number in range(60):
            run.serve(f"r{number}")
        with observer_over(tmp_path) as observer:
            telemetry = observer.get("/inspect/state")["telemetry"]
            assert telemetry["num_lost_records"] == telemetry["lost_by_role"]["EngineCore_DP0"] > 0
            assert observer.get("/inspect/invariants")["num_broken"] == 0


def test_a_bad_configuration_is_told_to_the_owner(tmp_path: Path) -> None:
    child = spawn("vllm_obs.telemetry.observer_main", "Observer", {"inspect_port": 1})
    try:
        with pytest.raises(StartupError, match="run_dir"):
            child.wait_for(READY, WAIT_SECONDS)
    finally:
        child.stop()


def test_an_address_of_another_machine_is_told_without_a_traceback(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    values = {"run_dir": str(tmp_path), "inspect_host": "192.0.2.1"}
    child = spawn("vllm_obs.telemetry.observer_main", "Observer", values)
    try:
        with pytest.raises(StartupError, match=r"the inspector cannot listen at 192\.0\.2\.1"):
            child.wait_for(READY, WAIT_SECONDS)
    finally:
        child.stop()
    assert capfd.readouterr().err == ""


def test_it_shows_its_owner_that_it_lives_until_it_is_stopped(tmp_path: Path) -> None:
    with observer_over(tmp_path) as observer:
        signs = threading.Semaphore(0)
        observer.child.on_message("ALIVE", lambda payload: signs.release())
        assert all(signs.acquire(timeout=WAIT_SECONDS) for _ in range(3))
        os.kill(observer.child.pid, signal.SIGSTOP)
        time.sleep(0.1)
        while signs.acquire(blocking=False):
            """What was said before."""
        assert not signs.acquire(timeout=2.0)
        os.kill(observer.child.pid, signal.SIGCONT)
        assert signs.acquire(timeout=WAIT_SECONDS)


def test_it_answers_while_nothing_is_recorded(tmp_path: Path) -> None:
    with observer_over(tmp_path) as observer:
        time.sleep(1.0)
        assert observer.get("/inspect/state")["health"] == {
            "word": "starting",
            "says": "No engine has started yet.",
        }
        assert observer.ask_unix("/metrics").status == 200


@pytest.mark.long
def test_many_requests_do_not_make_it_grow_without_bound(tmp_path: Path) -> None:
    with ScriptedRun(tmp_path, engine_bytes=8 << 20) as run, observer_over(tmp_path) as observer:
        run.start()
        sizes = [_serve_many(run, observer, round_number) for round_number in range(4)]
        found = observer.get("/inspect/requests?limit=1000")
        assert found["num_ended"] <= 10_000
        assert len(found["requests"]) == 1000
        assert found["cursor"]
        assert sizes[3] - sizes[2] < 60_000_000


def _serve_many(run: ScriptedRun, observer: ObserverChild, round_number: int) -> int:
    """Four thousand requests with names of their own; resident bytes of the Observer afterwards."""
    for number in range(4000):
        run.serve(f"r{round_number}-{number}", num_output=1)
        if number % 500 == 499:
            observer.get("/inspect/version")
    statm = Path(f"/proc/{observer.child.pid}/statm").read_text()
    return int(statm.split()[1]) * os.sysconf("SC_PAGE_SIZE")

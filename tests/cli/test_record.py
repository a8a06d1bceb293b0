"""`vllm-obs record` saves the newest run, alive or dead, and `vllm-obs replay` serves what it saved."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ends_with_pytest import ends_with_pytest
from observer_child import observer_over
from scripted_run import MODEL, ScriptedRun

from vllm_obs.cli.main import main
from vllm_obs.cli.record import span_seconds
from vllm_obs.engine.errors import ConfigError
from vllm_obs.telemetry.inspect_client import Inspector


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    base = tmp_path / "runs"
    base.mkdir()
    monkeypatch.setenv("VLLM_OBS_RUN_DIR", str(base))
    return base


def make_run(base: Path, name: str) -> ScriptedRun:
    (base / name).mkdir()
    run = ScriptedRun(base / name)
    run.start()
    run.serve(f"served by {name}")
    return run


def test_the_live_run_is_recorded_and_replayed(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "saved.rec"
    with make_run(base, "live"), observer_over(base / "live"), make_run(base, "newer"):
        assert main(["record", str(saved), "--last", "10m"]) == 0
    assert f"{saved}: " in capsys.readouterr().out
    with replay_of(saved) as (process, url):
        inspector = Inspector(url)
        assert inspector.get("/inspect/version")["run"] == "live"
        state = inspector.get("/inspect/state")
        assert (state["health"]["word"], state["models"]) == ("recording", [MODEL])
        (row,) = inspector.get("/inspect/requests")["requests"]
        assert row["http_id"] == "served by live"
        assert main(["explain", "served by live", "--url", url]) == 0
        assert main(["top", "--once", "--url", url]) == 0
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def test_a_dead_run_is_recorded_by_its_directory(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("older", "newer"):
        make_run(base, name).close()
    saved = tmp_path / "saved.rec"
    assert main(["record", str(saved), "--run", str(base / "older")]) == 0
    assert " records of 0." in capsys.readouterr().out
    assert saved.stat().st_mode & 0o777 == 0o600


def test_a_span_that_reaches_back_says_so(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (base / "run").mkdir()
    with ScriptedRun(base / "run") as run:
        run.start()
        run.serve("long", num_output=100)
    assert main(["record", str(tmp_path / "saved.rec"), "--last", "0.5s"]) == 0
    assert (
        " of 1.0 s (the last 0.5 s, and back to the beginning of the requests in them), "
        in capsys.readouterr().out
    )


def test_nothing_to_record_is_exit_1(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["record", str(tmp_path / "x.rec")]) == 1
    assert main(["record", str(tmp_path / "x.rec"), "--run", str(base)]) == 1
    assert main(["replay", str(tmp_path / "x.rec")]) == 1
    assert [line[:10] for line in capsys.readouterr().err.splitlines()] == ["vllm-obs: "] * 3


@pytest.mark.parametrize(("text", "seconds"), [("60s", 60), ("5m", 300), ("1h", 3600), ("90", 90), ("0.5s", 0.5)])
def test_spans_are_read(text: str, seconds: float) -> None:
    assert span_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "0s", "-5s", "25h", "nan", "1d", "1 m"])
def test_what_is_no_span_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="60s"):
        span_seconds(text)


@contextmanager
def replay_of(path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A replay process and its address."""
    command = [sys.executable, "-m", "vllm_obs", "replay", str(path), "--port", "0"]
    with ends_with_pytest(subprocess.Popen(command, stdout=subprocess.PIPE, text=True)) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().partition(" at ")[2].partition("/ (")[0]
        finally:
            process.kill()

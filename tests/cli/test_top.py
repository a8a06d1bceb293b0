"""`vllm-obs top` finds the live run, shows one look as lines or JSON, and says so when there is none."""

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from observer_child import ObserverChild, observer_over
from scripted_run import MODEL, ScriptedRun

from vllm_obs.cli.main import main
from vllm_obs.cli.top import take_verdict
from vllm_obs.cli.top_cells import cut
from vllm_obs.cli.top_screen import Frame, Look, screen

ANSI = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def observer(base: Path) -> Iterator[ObserverChild]:
    run_dir = base / "20261129-120000-7"
    run_dir.mkdir()
    with ScriptedRun(run_dir) as run:
        run.start()
        run.serve("done")
        run.submit("open")
        run.step("open")
        run.submit("waits")
        run.step("open", head_reason="kv_blocks")
        with observer_over(run_dir, served_model_names=[MODEL]) as observer:
            yield observer


@pytest.fixture(autouse=True)
def _runs_here(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_OBS_RUN_DIR", str(base))


def test_one_look_tells_the_whole(observer: ObserverChild, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--once"]) == 0
    shown = ANSI.sub("", capsys.readouterr().out)
    for part in (
        f"vllm-obs  {MODEL}  up 1m",
        "Cannot tell: engine 0 has 2 requests and no step has ended in this time.",
        "1 running  1 waiting  step 5  awake",
        "active, 0 cached, ",
        "waiting  1 for kv_blocks",
        "open-0-0",
        "queue: kv_blocks",
        "EngineCore_DP0",
        "Observer",
        "traces  off: no endpoint takes them",
        observer.url,
    ):
        assert part in shown


def test_it_shows_how_much_is_traced() -> None:
    exports = {"num_exported_spans": 40, "num_dropped_spans": 2, "num_spans_over_budget": 3}
    state = {
        "health": {"word": "ok", "says": "Fine."},
        "deaths": [],
        "models": [MODEL],
        "uptime_seconds": 5.0,
        "telemetry": {"num_lost_records": 0, "detail_level": 2, "sample_rate": 0.05, "exports": exports},
        "engines": [],
        "throughput": {},
        "waiting": {"by_reason": {}},
        "requests": {"num_live": 0},
    }
    lines = screen(Look(state, [], {"quantiles": {}}, []), Frame("http://127.0.0.1:9000", 110))
    assert "traces  detail 2 of 3, 5 % of requests sampled, 40 spans sent, 5 not" in lines


def test_one_look_as_json(observer: ObserverChild, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--json", "--url", observer.url]) == 0
    look = json.loads(capsys.readouterr().out)
    assert set(look) == {"state", "requests", "quantiles", "processes", "verdict", "url"}
    ended, so_far = (look["quantiles"]["quantiles"][name] for name in ("queue", "queue_so_far"))
    assert so_far["num_observed"] == ended["num_observed"] + 1, "the one that waits still"
    assert so_far["max"] > ended["max"]
    assert look["verdict"]["says"].startswith("Cannot tell: engine 0 has 2 requests")
    assert [request["request_id"] for request in look["requests"]] == ["waits-0-0", "open-0-0"]


@pytest.mark.parametrize("arguments", [["top", "--url", "http://127.0.0.1:9"], ["top", "--once", "--json"]])
def test_no_server_is_one_line_and_exit_1(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VLLM_OBS_RUN_DIR", str(tmp_path / "none"))
    assert main(arguments) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("vllm-obs: ")


@pytest.mark.parametrize("arguments", [["--interval", "0"], ["--url", "ftp://x"], ["--interval", "x"], ["extra"]])
def test_bad_options_are_78(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", *arguments]) == 78
    assert "float" not in capsys.readouterr().err


def test_where_the_last_seconds_were_well_what_was_wrong_in_the_latencies_minute_is_told() -> None:
    class Told:
        def get(self, path: str, **query: Any) -> Any:
            findings = [{}] if query["window"] == "1m" else []
            word = "late_first_tokens" if findings else "well"
            return {"window": query["window"], "word": word, "findings": findings}

    assert take_verdict(Told())["word"] == "late_first_tokens"  # type: ignore[arg-type]


def test_it_lives_in_a_terminal_and_q_ends_it(observer: ObserverChild) -> None:
    """In a terminal of 100 columns; nothing of it is left on the screen afterwards."""
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "vllm_obs", "top", "--interval", "0.2"]
    environment = {**os.environ, "COLUMNS": "100", "LINES": "40"}
    with subprocess.Popen(command, stdin=terminal, stdout=terminal, env=environment, close_fds=True) as process:
        os.close(terminal)
        shown = read_until(controller, b"Observer", 2)
        os.write(controller, b"p")
        shown += read_until(controller, b"held", 1)
        os.write(controller, b"q")
        shown += read_until(controller, b"\x1b[?1049l", 1)
        assert process.wait(30) == 0
    os.close(controller)
    frames = shown.decode().split("\x1b[H")
    lines = [line for frame in frames for line in ANSI.sub("", frame).split("\r\n")]
    assert [line for line in lines if len(line) > 100] == []


def read_until(fd: int, part: bytes, times: int) -> bytes:
    """What the terminal gets, up to so many of these."""
    shown = b""
    deadline = time.monotonic() + 60
    while shown.count(part) < times:
        assert time.monotonic() < deadline, shown
        if select.select([fd], [], [], 1.0)[0]:
            shown += os.read(fd, 65_536)
    return shown


def test_colours_take_no_room() -> None:
    assert cut("\x1b[31mabcdef\x1b[0m", 3) == "\x1b[31mabc\x1b[0m"
    assert cut("abc", 3) == "abc"

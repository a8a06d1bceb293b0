"""`vllm-obs explain` tells of a request by our id or the client's label, lists duplicates, and knows when not."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from observer_child import ObserverChild, observer_over
from scripted_run import ScriptedRun

from vllm_obs.cli.explain import bar
from vllm_obs.cli.main import main


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module", autouse=True)
def observer(base: Path) -> Iterator[ObserverChild]:
    run_dir = base / "20261129-120000-7"
    run_dir.mkdir()
    with ScriptedRun(run_dir) as run:
        run.start()
        run.serve("done", label="a/b c")
        run.serve("twin-1", label="twin")
        run.serve("twin-2", label="twin")
        run.refuse("refused")
        with observer_over(run_dir) as observer:
            yield observer


@pytest.fixture(autouse=True)
def _runs_here(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_OBS_RUN_DIR", str(base))


@pytest.mark.parametrize("name", ["done", "done-0-0", "done-0", "a/b c", "chatcmpl-a/b c", "resp_done"])
def test_a_request_is_explained(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", name]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("done-0-0 (a/b c): ended\n")
    assert "53 % of 38.0 ms was decoding 3 output tokens" in shown
    assert "  decode            20.000 ms  52.6 %  █████████████████████\n" in shown
    assert "  sum               38.000 ms" in shown
    assert "  waited for step_in_progress        1.000 ms" in shown


def test_all_that_carry_a_label_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "twin"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("2 requests carry this label.\n")
    assert shown.index("twin-2-0-0") < shown.index("twin-1-0-0")


def test_one_that_was_refused_says_how_it_was_answered(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "refused"]) == 0
    assert capsys.readouterr().out == (
        "refused: answered 400 invalid_value\n"
        "\n"
        "  POST /v1/chat/completions was answered with 400 invalid_value after 2.000 ms.\n"
        "  No sequence of it is known: it asked for none, or was refused before.\n"
    )


@pytest.mark.parametrize(
    ("share", "shown"),
    [(0.0, ""), (0.001, ""), (0.01, "▍"), (0.025, "█"), (0.5, "█" * 20), (1.0, "█" * 40), (1.1, "█" * 40)],
)
def test_bars_are_as_long_as_their_shares(share: float, shown: str) -> None:
    assert bar(share, 40) == shown


def test_who_stops_reading_gets_no_traceback() -> None:
    command = [sys.executable, "-m", "vllm_obs", "explain", "done"]
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    try:
        ended = subprocess.run(command, stdout=write_fd, stderr=subprocess.PIPE, timeout=60, check=False)
    finally:
        os.close(write_fd)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_json_is_what_the_inspector_says(observer: ObserverChild, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "done", "--json", "--url", observer.url]) == 0
    assert json.loads(capsys.readouterr().out) == observer.get("/inspect/requests/done")


def test_one_that_is_not_known_is_exit_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "nobody"]) == 1
    assert "no request of the last minutes has the id or label 'nobody'" in capsys.readouterr().err


def test_an_id_has_to_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 78

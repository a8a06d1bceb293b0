"""`vllm-obs dashboard` says in one line what it cannot show, before it starts anything."""

from pathlib import Path

import pytest

from vllm_obs.cli.main import main


def told(argv: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main(["dashboard", *argv])
    return code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--url", "ftp://here"], "--url ftp://here is not an http:// address"),
        (["--url", "http://here:99999"], "is not an http:// address"),
        (["--url", "http://h", "--demo"], "--url and --demo are two sources; the pages show one"),
        (["--recording", "a", "--incident", "b"], "--recording and --incident are two sources"),
        (["--port", "70000"], "70000 is not between 0 and 65535"),
        (["--trace-url", "http://jaeger/trace"], "has no {trace_id} in it"),
        (["--incident", "/nowhere"], "--incident /nowhere is no directory"),
    ],
)
def test_what_cannot_be_shown_is_refused(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, error = told(argv, capsys)
    assert (code, error.count("\n")) == (78, 1)
    assert words in error


def test_incident_without_a_recording_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, error = told(["--port", "0", "--incident", str(tmp_path)], capsys)
    assert code == 78
    assert "holds no recording" in error


def test_file_that_is_no_recording_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("no recording")
    code, error = told(["--port", "0", "--recording", str(path)], capsys)
    assert code == 1
    assert "notes.txt" in error

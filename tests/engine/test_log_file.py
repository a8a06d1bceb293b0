"""A process's log is in its run directory too: the same lines, bounded, private, and never in anybody's way."""

import logging
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from vllm_obs.engine.errors import EngineDeadError
from vllm_obs.engine.log import configure_logging
from vllm_obs.engine.log_file import LogFile, log_to_file, logged_to

TITLE = "EngineCore_DP0"


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """The test runner's own handlers and levels come back."""
    root, ours = logging.getLogger(), logging.getLogger("vllm_obs")
    saved = (root.handlers[:], root.level, ours.level)
    yield
    root.handlers[:], root.level, ours.level = saved[0], saved[1], saved[2]


def test_the_lines_of_stderr_are_in_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(TITLE)
    with logged_to(tmp_path, TITLE):
        logging.getLogger("vllm_obs.x").info("request %s", "r-1")
        log_to_file(str(tmp_path), "again")
    logging.getLogger("vllm_obs.x").info("after")
    path = tmp_path / f"{TITLE}.log"
    assert capsys.readouterr().err.startswith(path.read_text())
    assert path.read_text().endswith("request r-1\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not (tmp_path / "again.log").exists()


def test_it_is_bounded_and_keeps_one_older(tmp_path: Path) -> None:
    handler = LogFile(tmp_path, TITLE, max_bytes=1000)
    handler.setFormatter(logging.Formatter("%(message)s"))
    for number in range(200):
        handler.emit(logging.makeLogRecord({"msg": f"line {number:04d} {'x' * 80}", "levelno": 20}))
    handler.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{TITLE}.log", f"{TITLE}.log.1"]
    assert all(path.stat().st_size <= 1000 for path in tmp_path.iterdir())
    assert "line 0199" in (tmp_path / f"{TITLE}.log").read_text()


def test_a_place_that_cannot_be_written_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log_to_file(str(tmp_path / "missing"), TITLE)
    log_to_file("", TITLE)
    assert [record.message[:46] for record in caplog.records] == ["this process goes on without a log file: [Errn"]


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / f"{TITLE}.log").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic links"):
        LogFile(tmp_path, TITLE)


@pytest.mark.parametrize(("title", "has_words"), [("APIServer", False), (TITLE, True)])
def test_where_there_are_prompts_an_exception_is_told_without_its_words(
    title: str, has_words: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging(title)
    try:
        try:
            raise ValueError("a prompt")
        except ValueError as error:
            raise EngineDeadError("Worker_TP1 was killed") from error
    except EngineDeadError:
        logging.getLogger("vllm_obs.x").exception("request %s failed", "r-1")
    told = capsys.readouterr().err
    assert ("ValueError: a prompt" in told) == has_words
    assert told.index("ValueError") < told.index("EngineDeadError: Worker_TP1 was killed")
    assert told.count("Traceback (most recent call last):") == 2
    assert "test_log_file.py" in told
    logging.getLogger("asyncio").error(
        "Task exception was never retrieved\nfuture: <Task exception=X('a prompt')>"
    )
    assert ("a prompt" in capsys.readouterr().err) == has_words

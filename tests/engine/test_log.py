"""Logging: one set-up for every process, with its name, and quiet libraries."""

import logging
from collections.abc import Iterator

import pytest

from vllm_obs.engine.log import configure_logging


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """The test runner's own handlers and levels come back."""
    root, ours = logging.getLogger(), logging.getLogger("vllm_obs")
    saved = (root.handlers[:], root.level, ours.level)
    yield
    root.handlers[:], root.level, ours.level = saved[0], saved[1], saved[2]


def test_lines_carry_time_level_process_and_place(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("Worker_TP3")
    logging.getLogger("vllm_obs.engine.x").info("request %s has %d tokens", "r-1", 7)
    line = capsys.readouterr().err
    assert line.endswith("INFO    [Worker_TP3] vllm_obs.engine.x: request r-1 has 7 tokens\n")
    assert line[2] == line[5] == ":"


def test_other_libraries_are_heard_from_warnings_on(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("EngineCore_DP0", "debug")
    for name in ("asyncio", "somebody", "vllm_obs.engine"):
        logging.getLogger(name).info("information of %s", name)
        logging.getLogger(name).warning("warning of %s", name)
    words = capsys.readouterr().err
    assert [name in words for name in ("information of asyncio", "information of somebody")] == [False, False]
    assert "information of vllm_obs.engine" in words
    assert "warning of somebody" in words


@pytest.mark.parametrize(("word", "level"), [("WARNING", 30), ("debug", 10), ("nonsense", 20), ("", 20)])
def test_the_level_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, word: str, level: int) -> None:
    monkeypatch.setenv("VLLM_OBS_LOG_LEVEL", word)
    configure_logging("APIServer")
    assert logging.getLogger("vllm_obs").level == level


def test_setting_up_twice_does_not_double_the_lines(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("APIServer")
    configure_logging("APIServer")
    logging.getLogger("vllm_obs").warning("once")
    assert capsys.readouterr().err.count("once") == 1

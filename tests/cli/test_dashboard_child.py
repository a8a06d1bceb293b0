"""Where the pages are is told once the server is ready, whichever comes first."""

from collections.abc import Callable
from typing import Any

import pytest

from vllm_obs.cli import dashboard_child
from vllm_obs.cli.dashboard_child import SERVING, DashboardChild, DashboardOptions

URL = "http://127.0.0.1:8501/"


class FakePages:
    """A child that says what it is told to."""

    was_told = False

    def __init__(self) -> None:
        self.callbacks: dict[str, Callable[[Any], None]] = {}

    def on_message(self, kind: str, callback: Callable[[Any], None]) -> None:
        self.callbacks[kind] = callback

    def on_exit(self, callback: Callable[[str], None]) -> None:
        self.end = callback


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> FakePages:
    made = FakePages()
    monkeypatch.setattr(dashboard_child, "spawn", lambda *_: made)
    return made


def test_pages_that_are_there_first_are_told_when_the_server_is_ready(
    child: FakePages, capsys: pytest.CaptureFixture[str]
) -> None:
    pages = DashboardChild(DashboardOptions())
    child.callbacks[SERVING](URL)
    assert capsys.readouterr().out == ""
    pages.tell_address()
    assert capsys.readouterr().out == f"Pages: {URL}\n"


def test_pages_that_are_there_later_are_told_at_once(child: FakePages, capsys: pytest.CaptureFixture[str]) -> None:
    pages = DashboardChild(DashboardOptions())
    pages.tell_address()
    assert capsys.readouterr().out == ""
    child.callbacks[SERVING](URL)
    assert capsys.readouterr().out == f"Pages: {URL}\n"


def test_when_they_end_alone_it_is_said_how_to_see_them_again(
    child: FakePages, capsys: pytest.CaptureFixture[str]
) -> None:
    DashboardChild(DashboardOptions())
    child.end("Dashboard was killed by SIGKILL")
    said = capsys.readouterr()
    assert "Dashboard was killed by SIGKILL; vllm-obs dashboard shows them again" in said.out + said.err

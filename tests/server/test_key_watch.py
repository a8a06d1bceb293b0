"""While the server runs its keys follow their file: at once when asked, and never into nothing."""

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine
from http_app import Served, served
from notify_socket import NotifySocket, notify_socket

from vllm_obs.server.config import ServerConfig
from vllm_obs.server.key_watch import KeyWatch
from vllm_obs.server.service_notify import NO_SERVICE, ServiceNotify

FOLLOWED_SECONDS = 3 * 1.0
"""Three times what is promised."""


class Stage:
    """A served application whose keys are watched."""

    def __init__(self, app: Served, path: Path) -> None:
        self.app = app
        self.path = path

    def write(self, text: str) -> None:
        new = self.path.with_suffix(".new")
        new.write_text(text)
        new.chmod(0o600)
        old = time.time() - 5
        os.utime(new, (old, old))
        new.replace(self.path)

    async def status(self, key: str) -> int:
        reply = await self.app.client.get("/v1/models", headers={"authorization": f"Bearer {key}"})
        return reply.status_code

    async def until(self, key: str, status: int) -> None:
        deadline = time.monotonic() + FOLLOWED_SECONDS
        while await self.status(key) != status:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)


Play = Callable[[Stage], Coroutine[Any, Any, None]]


def play(
    path: Path, scene: Play, service: ServiceNotify = NO_SERVICE, given: tuple[str, ...] = (), mode: int = 0o600
) -> None:
    path.write_text("old\nstays\n")
    path.chmod(mode)
    server = ServerConfig(api_keys=(*given, "old", "stays"), api_key_file=str(path), num_given_keys=len(given))

    async def main() -> None:
        async with served(FakeEngine(lambda request: [30]), server) as app:
            watch = KeyWatch(app.api.keys, server, service)
            watch.start()
            try:
                await scene(Stage(app, path))
            finally:
                watch.stop()

    asyncio.run(main())


def test_a_new_key_is_let_in_and_an_old_one_no_longer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "vllm_obs.server.key_watch")

    async def scene(stage: Stage) -> None:
        stage.write("new\nstays\n")
        await stage.until("new", 200)
        assert [await stage.status(key) for key in ("old", "stays", "given")] == [401, 200, 200]

    play(tmp_path / "keys", scene, given=("given",))
    assert [record.getMessage() for record in caplog.records] == [
        "API keys: 1 are new, 1 are gone, 3 are valid",
    ]


@pytest.mark.parametrize("broken", ["", "bad name\tnew\n"])
def test_a_broken_file_changes_nothing_and_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    async def scene(stage: Stage) -> None:
        stage.write(broken)
        deadline = time.monotonic() + FOLLOWED_SECONDS
        while not caplog.records:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        await asyncio.sleep(1.2)  # two more looks
        assert [await stage.status(key) for key in ("old", "new")] == [200, 401]
        stage.write("new\n")
        await stage.until("new", 200)
        assert await stage.status("old") == 401

    play(tmp_path / "keys", scene)
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert line.endswith("; the keys stay as they were")
    assert "\tnew" not in line


def test_sighup_without_a_change_is_answered_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "vllm_obs.server.key_watch")

    async def scene(stage: Stage) -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        deadline = time.monotonic() + FOLLOWED_SECONDS
        while not caplog.records:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.6)  # another look

    play(tmp_path / "keys", scene)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "API keys: 0 are new, 0 are gone, 2 are valid"),
    ]


@pytest.mark.parametrize(("mode", "is_told"), [(0o400, False), (0o640, False), (0o644, True), (0o620, True)])
def test_a_file_that_others_may_read_or_write_is_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, is_told: bool
) -> None:
    path = tmp_path / "keys"

    async def scene(stage: Stage) -> None:
        await asyncio.sleep(0.7)  # a look
        assert await stage.status("old") == 200

    play(path, scene, mode=mode)
    line = f"--api-key-file {path} has mode {mode:o}: others may read or write the keys in it"
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert told == ([line] if is_told else [])


def test_sighup_reads_it_at_once_and_the_manager_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm_obs.server.key_watch.LOOK_SECONDS", 60.0)

    async def scene(stage: Stage) -> None:
        stage.path.write_text("new\n")
        os.kill(os.getpid(), signal.SIGHUP)
        await stage.until("new", 200)
        assert await stage.status("old") == 401

    with notify_socket() as manager:
        service = ServiceNotify.of({"NOTIFY_SOCKET": manager.name})
        assert service.ready()
        play(tmp_path / "keys", scene, service)
        assert_reloaded(manager)


def assert_reloaded(manager: NotifySocket) -> None:
    ready, reloading, ready_again = manager.received()
    assert (ready, ready_again) == ("READY=1", "READY=1")
    assert reloading.startswith("RELOADING=1\nMONOTONIC_USEC=")


def test_without_a_file_sighup_is_left_alone() -> None:
    async def main() -> None:
        async with served(FakeEngine(lambda request: [30]), ServerConfig(api_keys=("k",))) as app:
            before = signal.getsignal(signal.SIGHUP)
            watch = KeyWatch(app.api.keys, app.api.server)
            watch.start()
            assert signal.getsignal(signal.SIGHUP) == before
            watch.stop()

    asyncio.run(main())

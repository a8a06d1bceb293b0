"""The Observer's process: started beside the server, started again when it dies, ended last and not at once."""

import asyncio
import os
import signal
import time
from collections.abc import Coroutine
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from process_watch import gone

from vllm_obs.engine.child import Child, spawn
from vllm_obs.engine.errors import StartupError
from vllm_obs.server import observer as observer_module
from vllm_obs.server import observer_pulse
from vllm_obs.server.config import ServerConfig
from vllm_obs.server.observer import ObserverChild, Order, TelemetryOrder
from vllm_obs.server.observer_client import ObserverClient, ObserverUnavailableError
from vllm_obs.server.observer_pulse import pulse_of
from vllm_obs.server.observer_settings import inspect_port
from vllm_obs.server.profiles import ProfileRequest
from vllm_obs.telemetry.recorder import MemoryRecorder
from vllm_obs.telemetry.records import ProcessExited

SECONDS = 30.0


@pytest.fixture(autouse=True)
def fake_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children are found in tests/support, and waits are short."""
    support = str(Path(__file__).parents[1] / "support")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [support, os.environ.get("PYTHONPATH")])))
    monkeypatch.setattr(observer_module, "FIRST_WAIT_SECONDS", 0.02)


def ignore(order: TelemetryOrder) -> None:
    """Nobody orders anything."""


class Stage:
    """An Observer under a loop, and what was recorded of it."""

    def __init__(self, run_dir: Path, start: Any = spawn, **settings: Any) -> None:
        self.run_dir = run_dir
        self.recorder = MemoryRecorder()
        configuration = {"run_dir": str(run_dir), "inspect_host": "127.0.0.1", **settings}
        self.observer = ObserverChild(configuration, self.recorder, "fake_observer", start)

    async def until(self, holds: Any) -> None:
        deadline = time.monotonic() + SECONDS
        while not holds():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)

    def exits(self) -> list[tuple[str, int]]:
        return [(record.role, record.exit_code) for record in self.recorder.of(ProcessExited)]  # type: ignore[union-attr]


def run(play: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(2 * SECONDS):
            await play

    asyncio.run(bounded())


def test_it_is_told_where_the_server_is_and_tells_where_its_inspector_is(tmp_path: Path) -> None:
    async def play() -> None:
        stage = Stage(tmp_path)
        stage.observer.start("http://127.0.0.1:8000", 9000, ignore)
        assert await stage.observer.address() == "http://127.0.0.1:9000"
        pid = stage.observer.pid
        assert pid is not None
        assert os.getpriority(os.PRIO_PROCESS, pid) == min(os.getpriority(os.PRIO_PROCESS, 0) + 10, 19)
        await stage.observer.stop()
        assert gone(pid, 3)
        assert (tmp_path / "drained").read_text() == str(pid)
        assert "'api_address': 'http://127.0.0.1:8000'" in (tmp_path / "settings").read_text()
        assert await stage.observer.address() is None

    run(play())


def test_one_that_dies_is_started_again(tmp_path: Path) -> None:
    async def play() -> None:
        stage = Stage(tmp_path)
        stage.observer.start("", 0, ignore)
        await stage.observer.address()
        for number in range(2, 4):
            assert stage.observer.pid is not None
            os.kill(stage.observer.pid, signal.SIGKILL)
            await stage.until(lambda number=number: stage.observer.num_starts == number)
            assert await stage.observer.address() == "http://127.0.0.1:4321"
        assert stage.exits() == [("Observer", -9)] * 2
        await stage.observer.stop()

    run(play())


def test_one_that_hangs_is_killed_and_started_again_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observer_pulse, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(observer_pulse, "START_LOOKS", 10**6)
    monkeypatch.setattr(observer_pulse, "HANG_LOOKS", 100)
    monkeypatch.setattr(observer_pulse, "STOPPED_LOOKS", 100)

    async def play() -> None:
        stage = Stage(tmp_path)
        stage.observer.start("", 0, ignore)
        await stage.observer.address()
        hung = stage.observer.pid
        assert hung is not None
        os.kill(hung, signal.SIGSTOP)
        client = ObserverClient(str(tmp_path))
        await stage.until(lambda: pulse_of(str(tmp_path)).is_quiet)
        with pytest.raises(ObserverUnavailableError, match=r"has given no sign of life for [\d.]+ s"):
            await client.get("/metrics", b"*/*")
        await stage.until(lambda: stage.observer.num_starts == 2)
        assert gone(hung, 3)
        await stage.observer.address()
        assert (await client.get("/metrics", b"*/*")).body == b"# /metrics */*\n"
        assert stage.exits() == [("Observer", -9)]
        await stage.observer.stop()

    run(play())
    assert [record.message for record in caplog.records if record.name == observer_module.__name__] == [
        "Observer gave no sign of life for 2 s and was killed; serving goes on without it, "
        "it is started again in 0.02 s"
    ]


def test_one_that_never_becomes_ready_is_killed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer_pulse, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(observer_pulse, "START_LOOKS", 20)

    async def play() -> None:
        stage = Stage(tmp_path, is_never_ready=True)
        stage.observer.start("", 0, ignore)
        await stage.until(lambda: stage.observer.num_starts == 2)
        assert stage.exits() == [("Observer", -9)]
        await stage.observer.stop()

    run(play())


def test_the_inspector_keeps_its_port_over_a_restart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    async def play() -> None:
        stage = Stage(tmp_path)
        stage.observer.start("", 0, ignore)
        await stage.observer.address()
        await stage.until(lambda: pulse_of(str(tmp_path)).is_ready)
        assert stage.observer.pid is not None
        os.kill(stage.observer.pid, signal.SIGKILL)
        await stage.until(lambda: stage.observer.num_starts == 2)
        await stage.until(lambda: "'inspect_port': 4321" in (tmp_path / "settings").read_text())
        assert await stage.observer.address() == "http://127.0.0.1:4321"
        await stage.observer.stop()

    run(play())
    assert capsys.readouterr().out == ""
    assert "is taken" not in caplog.text


def test_another_port_is_explained_and_told_to_who_knew_the_old_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    async def play() -> None:
        stage = Stage(tmp_path, ports_instead={"4321": 4322, "4322": 4323})
        stage.observer.start("", 4321, ignore)
        for number in (2, 3):
            await stage.until(lambda: pulse_of(str(tmp_path)).is_ready)
            assert stage.observer.pid is not None
            os.kill(stage.observer.pid, signal.SIGKILL)
            await stage.until(lambda number=number: stage.observer.num_starts == number)
        await stage.until(lambda: pulse_of(str(tmp_path)).is_ready)
        await stage.observer.stop()

    run(play())
    said = [record.message for record in caplog.records if "is taken" in record.message]
    assert said == [
        "port 4321 is taken; the inspector has port 4322",
        "port 4322 is taken; the inspector has port 4323",
    ]
    assert capsys.readouterr().out == "Inspector: http://127.0.0.1:4323\n"


def test_one_that_is_started_again_is_as_dear_as_serving_until_it_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    least = min(own + 10, 19)
    seen: list[int] = []

    def start(module: str, title: str, configuration: dict[str, Any]) -> Child:
        child = spawn(module, title, configuration)
        asyncio.get_running_loop().call_later(
            0.01, lambda: seen.append(os.getpriority(os.PRIO_PROCESS, child.pid))
        )
        return child

    async def play() -> None:
        stage = Stage(tmp_path, start)
        stage.observer.start("", 0, ignore)
        await stage.until(lambda: pulse_of(str(tmp_path)).is_ready)
        assert stage.observer.pid is not None
        os.kill(stage.observer.pid, signal.SIGKILL)
        await stage.until(lambda: len(seen) == 2)
        await stage.until(lambda: pulse_of(str(tmp_path)).is_ready)
        pid = stage.observer.pid
        assert pid is not None
        assert os.getpriority(os.PRIO_PROCESS, pid) == least
        await stage.observer.stop()

    run(play())
    assert seen == [least, own]


def test_one_that_cannot_be_started_is_tried_again_ever_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[float] = []

    def start(module: str, title: str, configuration: dict[str, Any]) -> Child:
        tries.append(time.monotonic())
        raise StartupError("no memory")

    async def play() -> None:
        stage = Stage(tmp_path, start)
        stage.observer.start("", 0, ignore)
        await stage.until(lambda: len(tries) == 5)
        await stage.observer.stop()
        num_tries = len(tries)
        await asyncio.sleep(0.05)
        assert len(tries) == num_tries

    run(play())
    gaps = [later - earlier for earlier, later in pairwise(tries)]
    assert all(gap >= 0.02 * 2**number for number, gap in enumerate(gaps))
    assert "no memory" in caplog.text


@pytest.mark.parametrize("at_once", [True, False])
def test_one_that_is_not_there_yet_or_may_not_drain_is_killed(tmp_path: Path, at_once: bool) -> None:
    async def play() -> None:
        stage = Stage(tmp_path, is_deaf=True)
        stage.observer.start("", 0, ignore)
        if at_once:
            await stage.observer.address()
        pid, begun = stage.observer.pid, time.monotonic()
        assert pid is not None
        await stage.observer.stop(at_once)
        assert gone(pid, 3)
        assert time.monotonic() - begun < observer_module.DRAIN_SECONDS

    run(play())
    assert not (tmp_path / "drained").exists()


def test_one_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer_module, "DRAIN_SECONDS", 0.2)

    async def play() -> None:
        stage = Stage(tmp_path, is_deaf=True)
        stage.observer.start("", 0, ignore)
        await stage.observer.address()
        pid = stage.observer.pid
        assert pid is not None
        await stage.observer.stop()
        assert gone(pid, 3)

    run(play())
    assert not (tmp_path / "drained").exists()


def test_orders_are_passed_on_and_kept_for_the_next_observer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    orders: list[TelemetryOrder] = []

    def take(order: TelemetryOrder) -> None:
        if order.detail_level > 3:
            raise ValueError("out of range")
        orders.append(order)

    async def play() -> None:
        stage = Stage(
            tmp_path, orders=[{"detail_level": 1, "sample_rate": 0.5}, {"detail_level": 9, "sample_rate": 1}, {}]
        )
        stage.observer.start("", 0, take)
        await stage.until(lambda: len(caplog.records) == 2)
        assert stage.observer.pid is not None
        os.kill(stage.observer.pid, signal.SIGKILL)
        await stage.until(lambda: stage.observer.num_starts == 2)
        await stage.until(lambda: "'detail_level': 1, 'sample_rate': 0.5" in (tmp_path / "settings").read_text())
        await stage.observer.stop()

    run(play())
    assert orders[0] == TelemetryOrder(1, 0.5)
    assert len(set(orders)) == 1


def test_orders_for_profiles_are_passed_on_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    orders: list[Order] = []

    async def play() -> None:
        order = {"profile": "p", "kind": "operators", "seconds": 2, "steps": 30}
        stage = Stage(tmp_path, profiles=[order, {"profile": "p"}])
        stage.observer.start("", 0, orders.append)
        await stage.until(lambda: len(caplog.records) == 1)
        await stage.observer.stop()

    run(play())
    assert orders == [ProfileRequest("p", "operators", 2.0, 30)]


@pytest.mark.parametrize(
    ("asked", "api_port", "port"),
    [(None, 8000, 9000), (None, 64_535, 65_535), (None, 64_536, 0), (None, None, 0), (0, 8000, 0), (7, 8000, 7)],
)
def test_the_inspector_is_a_thousand_ports_from_the_api(
    asked: int | None, api_port: int | None, port: int
) -> None:
    assert inspect_port(ServerConfig(inspect_port=asked), api_port) == port

"""The root of several API servers from start to exit code, over servers and engines that only play their part."""

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from fake_executor import tiny_config

from vllm_obs.engine.errors import ConfigError, StartupError
from vllm_obs.engine.run_dir import RunDirectory
from vllm_obs.server.config import ServerConfig
from vllm_obs.server.launcher import Launcher
from vllm_obs.server.observer import TakeOrder, TelemetryOrder
from vllm_obs.server.profiles import ProfileRequest
from vllm_obs.telemetry.recorder import MemoryRecorder
from vllm_obs.telemetry.records import EngineRestarted, ProcessExited, ProcessReady, TelemetrySet

NUM_SERVERS = 2
SUPPORT = Path(__file__).parent.parent / "support"


@pytest.fixture(autouse=True)
def child_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children can be started from the modules of tests/support."""
    paths = [str(SUPPORT), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))


class FakeObserver:
    """Keeps what it is started with, and whether it was stopped."""

    take_order: TakeOrder

    def __init__(self) -> None:
        self.log: list[Any] = []

    def start(self, api_address: str, inspect_port: int, take_order: TakeOrder) -> None:
        self.log.append(("start", api_address))
        self.take_order = take_order

    async def address(self) -> str | None:
        return "http://127.0.0.1:9999"

    async def stop(self, at_once: bool = False) -> None:
        self.log.append("stop at once" if at_once else "stop")


class Root:
    """A launcher that runs in the main thread, as a scenario in another sees it."""

    def __init__(self, listener: socket.socket, run_dir: Path, **settings: Any) -> None:
        self.recorder = MemoryRecorder()
        self.observer = FakeObserver()
        server = ServerConfig(api_server_count=NUM_SERVERS, **{"engine_restarts": 2, **settings})
        config = replace(tiny_config(), run_dir=str(run_dir))
        self.launcher = Launcher(config, server, self.recorder, self.observer)
        self.launcher.engine_module = "fake_engine_process"
        self.launcher.api_server_module = "fake_api_server"
        self.is_ready = threading.Event()
        self.launcher.on_ready = self.is_ready.set
        self._listener = listener
        self._run_dir = run_dir

    def run(self, scenario: Callable[["Root"], Any], num_engines: int = 1) -> tuple[int, Any]:
        """The exit code, and what the scenario gave that ran once all was ready."""
        results: list[Any] = []
        failures: list[BaseException] = []

        def act() -> None:
            try:
                assert self.is_ready.wait(60)
                results.append(scenario(self))
            except BaseException as error:
                failures.append(error)
                os.kill(os.getpid(), signal.SIGTERM)
                os.kill(os.getpid(), signal.SIGTERM)

        actor = threading.Thread(target=act)
        actor.start()
        try:
            code = self.launcher.run(self._listener, list(range(num_engines)), time.monotonic_ns())
        finally:
            self.is_ready.set()
            actor.join(60)
        if failures:
            raise failures[0]
        return code, results[0]

    def ask(self) -> str:
        """Who takes a connection: an index and a life."""
        with socket.create_connection(self._listener.getsockname(), timeout=20) as connection:
            return connection.recv(64).decode()

    def child(self, title: str) -> psutil.Process:
        """The process of that title."""
        return next(
            process
            for process in psutil.Process().children()
            if f"vllm-obs::{title}" in " ".join(process.cmdline())
        )

    def heard(self, index: int) -> list[str]:
        """What that server was ordered, each with its life."""
        path = self._run_dir / f"heard-{index}.log"
        return path.read_text().splitlines() if path.exists() else []

    def await_heard(self, index: int, line: str) -> None:
        eventually(lambda: line in self.heard(index))


def eventually(is_so: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 30
    while True:
        with contextlib.suppress(StopIteration, psutil.NoSuchProcess):
            if is_so():
                return
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.01)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound


@pytest.fixture
def run_dir(short_path: Path) -> Iterator[Path]:
    with RunDirectory.create(short_path) as directory:
        yield directory.path
    assert not list(directory.path.glob("*.sock"))
    assert psutil.Process().children() == []


def test_sigterm_drains_all_and_ends_with_0(
    listener: socket.socket, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def scenario(root: Root) -> set[str]:
        found = {root.ask() for _ in range(4)}
        stop()
        return found

    root = Root(listener, run_dir)
    assert root.run(scenario, num_engines=2) == (0, {"0.0", "1.0"})
    printed = capsys.readouterr().out.splitlines()
    assert [line.partition(" ")[0] for line in printed] == ["2", "KV", "Ready", "Inspector:"]
    assert root.observer.log == [("start", f"http://127.0.0.1:{root._listener.getsockname()[1]}"), "stop"]
    assert len(root.recorder.of(ProcessReady)) == 1
    ends = {end.role: (end.exit_code, end.was_told) for end in root.recorder.of(ProcessExited)}
    assert ends.keys() >= {"EngineCore_DP0", "EngineCore_DP1"}
    assert all(end == (0, True) for end in ends.values())
    for index in range(NUM_SERVERS):
        states = [line.removeprefix("0 ENGINE ") for line in root.heard(index) if "ENGINE" in line]
        assert sorted(states) == ["serving", "serving", "starting", "starting"]
        assert root.heard(index)[-1] == "0 DRAIN None"


def test_servers_that_do_not_drain_in_time_are_cut_off(
    listener: socket.socket, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_OBS_FAKE_SERVER", "slow")
    root = Root(listener, run_dir, shutdown_timeout=0.1)
    assert root.run(lambda root: stop())[0] == 1
    assert [root.heard(index)[-1] for index in range(NUM_SERVERS)] == ["0 CUT_OFF None"] * 2


def test_the_second_signal_waits_for_nobody(
    listener: socket.socket, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_OBS_FAKE_SERVER", "slow")

    def scenario(root: Root) -> float:
        stop()
        root.await_heard(0, "0 DRAIN None")
        stop()
        return time.monotonic()

    root = Root(listener, run_dir, shutdown_timeout=60)
    code, told_at = root.run(scenario)
    assert code == 1
    assert time.monotonic() - told_at < 3 * 1.0
    assert root.observer.log[-1] == "stop at once"


def test_a_dead_server_is_replaced_and_its_client_is_replaced_in_the_engines(
    listener: socket.socket, run_dir: Path
) -> None:
    def scenario(root: Root) -> None:
        root.observer.take_order  # noqa: B018 - it has been started
        root.child("APIServer_1").kill()
        root.await_heard(1, "1 ENGINE serving")
        eventually(lambda: root.ask() == "1.1")
        stop()

    root = Root(listener, run_dir)
    assert root.run(scenario)[0] == 0
    assert [line for line in root.heard(1) if line.startswith("1 ENGINE")] == ["1 ENGINE serving"]
    killed = [end for end in root.recorder.of(ProcessExited) if end.exit_code == -signal.SIGKILL]
    assert [(end.role, end.was_told) for end in killed] == [("APIServer_1", False)]


def test_a_server_that_hangs_is_replaced_without_an_observer_or_rings(
    listener: socket.socket, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def scenario(root: Root) -> None:
        root.child("APIServer_1").suspend()
        root.await_heard(1, "1 ENGINE serving")
        stop()

    root = Root(listener, run_dir, stall_timeout=1.0)
    root.launcher._observer = None
    assert root.run(scenario)[0] == 0
    assert "0 ENGINE serving" in root.heard(0)
    assert not [line for line in root.heard(0) if line.startswith("1 ")], "the other goes on"


def test_a_server_that_dies_too_often_ends_all_with_70(
    listener: socket.socket, run_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """How often engines are started again has no say in it."""
    monkeypatch.setattr("vllm_obs.server.api_servers.API_SERVER_RESTARTS", 1)

    def scenario(root: Root) -> None:
        for life in range(2):
            eventually(lambda life=life: f"{life} ENGINE serving" in root.heard(0))
            time.sleep(0.2)
            root.child("APIServer_0").kill()

    assert Root(listener, run_dir, engine_restarts=0).run(scenario)[0] == 70
    words = "vllm-obs: APIServer_0 died 2 times in"
    assert capsys.readouterr().err.splitlines()[-1].startswith(words)


def test_a_dead_engine_is_replaced_and_every_server_is_told(listener: socket.socket, run_dir: Path) -> None:
    def scenario(root: Root) -> None:
        root.child("EngineCore_DP0").kill()
        for index in range(NUM_SERVERS):
            eventually(lambda index=index: root.heard(index).count("0 ENGINE serving") == 2)
        stop()

    root = Root(listener, run_dir)
    assert root.run(scenario)[0] == 0
    states = [line.removeprefix("0 ENGINE ") for line in root.heard(1) if "ENGINE" in line]
    assert states == ["starting", "serving", "dead", "expected", "starting", "serving"]
    (restarted,) = root.recorder.of(EngineRestarted)
    assert (restarted.engine, restarted.generation, restarted.num_open) == ("0", 1, 2 * NUM_SERVERS)
    assert restarted.cause == "EngineCore_DP0 was killed by SIGKILL"


def test_an_engine_that_dies_before_all_servers_are_ready_ends_the_start_in_which_nobody_was_let_in(
    listener: socket.socket, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_OBS_FAKE_SERVER", "late")
    root = Root(listener, run_dir)

    def kill() -> None:
        root.await_heard(0, "0 ENGINE serving")
        time.sleep(0.2)  # the first server has said that it is ready
        root.child("EngineCore_DP0").kill()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(StartupError, match="EngineCore_DP0 was killed by SIGKILL before all was ready"):
        root.launcher.run(listener, [0], time.monotonic_ns())
    killer.join(30)
    assert "0 OPEN None" not in root.heard(0)
    assert not root.is_ready.is_set()


def test_an_engine_that_cannot_be_kept_ends_all_with_70(
    listener: socket.socket, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Root(listener, run_dir, engine_restarts=0)
    assert root.run(lambda root: root.child("EngineCore_DP0").kill())[0] == 70
    assert capsys.readouterr().err.splitlines()[-1] == (
        "vllm-obs: the engine died: EngineCore_DP0 was killed by SIGKILL"
    )
    assert "0 ENGINE given up" in root.heard(0)


def test_orders_of_the_inspector_reach_the_servers_and_stay(listener: socket.socket, run_dir: Path) -> None:
    def scenario(root: Root) -> None:
        loop = root.launcher._api_servers.places[0]._loop
        loop.call_soon_threadsafe(root.observer.take_order, TelemetryOrder(1, 0.5))
        loop.call_soon_threadsafe(root.observer.take_order, ProfileRequest("mine"))
        for index in range(NUM_SERVERS):
            root.await_heard(index, "0 TELEMETRY {'detail_level': 1, 'sample_rate': 0.5}")
        root.child("APIServer_1").kill()
        root.await_heard(1, "1 TELEMETRY {'detail_level': 1, 'sample_rate': 0.5}")
        stop()

    root = Root(listener, run_dir)
    assert root.run(scenario)[0] == 0
    assert [(order.detail_level, order.sample_rate) for order in root.recorder.of(TelemetrySet)] == [(1, 0.5)]
    profiles = [line for index in range(NUM_SERVERS) for line in root.heard(index) if "PROFILE" in line]
    assert len(profiles) == 1


def test_what_one_server_suspects_the_others_are_told(listener: socket.socket, run_dir: Path) -> None:
    def scenario(root: Root) -> None:
        loop = root.launcher._api_servers.places[0]._loop
        loop.call_soon_threadsafe(root.observer.take_order, ProfileRequest("mine"))
        root.await_heard(1, f"0 SUSPECTS {[b'd' * 32]}")
        for index in range(NUM_SERVERS):
            root.await_heard(index, f"0 BLAMED {b'd' * 32}")  # it was the only one of all
        stop()

    root = Root(listener, run_dir)
    assert root.run(scenario)[0] == 0
    assert not [line for line in root.heard(0) if "SUSPECTS" in line], "it knows already"


def test_sighup_lets_all_servers_look_at_the_key_file(listener: socket.socket, run_dir: Path) -> None:
    def scenario(root: Root) -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        for index in range(NUM_SERVERS):
            root.await_heard(index, "0 RELOAD None")
        stop()

    assert Root(listener, run_dir, api_key_file="/nowhere").run(scenario)[0] == 0


def test_a_server_that_cannot_start_is_told_of_once(
    listener: socket.socket, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_OBS_FAKE_SERVER", "bad")
    with pytest.raises(ConfigError, match="this API server cannot be configured"):
        Root(listener, run_dir).launcher.run(listener, [0], time.monotonic_ns())


def test_an_engine_that_cannot_start_is_told_of_in_its_own_words(
    listener: socket.socket, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_OBS_TEST_HOOKS", "1")
    monkeypatch.setenv("VLLM_OBS_TEST_FAULTS", "engine_start=raise")
    with pytest.raises(StartupError, match="engine_start"):
        Root(listener, run_dir).launcher.run(listener, [0, 1], time.monotonic_ns())

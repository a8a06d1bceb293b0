"""The life of a batch: its exit codes, signals, the death of the engine, and what is told."""

import io
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from fake_engine import FakeEngine, balanced
from http_app import model_config

from vllm_obs.engine.errors import StartupError
from vllm_obs.server.batch_files import BatchFiles
from vllm_obs.server.batch_lifecycle import BatchLifecycle
from vllm_obs.server.config import ServerConfig
from vllm_obs.server.observer import TakeOrder
from vllm_obs.telemetry.recorder import MemoryRecorder
from vllm_obs.telemetry.records import HttpRequestEnded, ProcessReady

pytestmark = pytest.mark.usefixtures("frozen")


def lines(number: int, max_tokens: int = 1) -> bytes:
    body = {"prompt": "Hello", "max_tokens": max_tokens}
    fields = {"method": "POST", "url": "/v1/completions", "body": body}
    return b"".join(json.dumps({"custom_id": str(n), **fields}).encode() + b"\n" for n in range(number))


class FakeObserver:
    """Keeps what is done with it."""

    def __init__(self) -> None:
        self.log: list[Any] = []

    def start(self, api_address: str, inspect_port: int, take_order: TakeOrder) -> None:
        self.log.append(("start", api_address, inspect_port))

    async def address(self) -> str | None:
        return "http://127.0.0.1:9999"

    async def stop(self, at_once: bool = False) -> None:
        self.log.append("stop at once" if at_once else "stop")


class Batch:
    """Runs a batch in the main thread, and something beside it."""

    def __init__(self, engine: FakeEngine, content: bytes, shutdown_timeout: float = 20.0) -> None:
        self.engine = engine
        self.output = io.BytesIO()
        self.recorder = MemoryRecorder()
        self.observer = FakeObserver()
        server = ServerConfig(shutdown_timeout=shutdown_timeout)
        self._lifecycle = BatchLifecycle(model_config(), server, balanced(engine), self.recorder, self.observer)
        self._files = BatchFiles(io.BytesIO(content), self.output)

    def run(self, beside: Callable[[], object] = lambda: None) -> int:
        actor = threading.Thread(target=beside)
        actor.start()
        try:
            return self._lifecycle.run_batch(self._files, time.monotonic_ns())
        finally:
            actor.join(20)
            assert not actor.is_alive()

    @property
    def names(self) -> list[str]:
        return [json.loads(written)["custom_id"] for written in self.output.getvalue().splitlines()]


def signal_once(is_time: Callable[[], bool], number: int = signal.SIGINT, times: int = 1) -> Callable[[], None]:
    def act() -> None:
        deadline = time.monotonic() + 15
        while not is_time() and time.monotonic() < deadline:
            time.sleep(0.005)
        for _ in range(times):
            os.kill(os.getpid(), number)
            time.sleep(0.05)

    return act


def test_a_batch_in_which_all_went_well_ends_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    batch = Batch(FakeEngine(lambda request: [30]), lines(30))
    assert batch.run() == 0
    assert sorted(batch.names, key=int) == [str(n) for n in range(30)]
    told = capsys.readouterr()
    assert told.out == ""
    assert "vllm-obs: Inspector: http://127.0.0.1:9999\n" in told.err
    assert "30 lines answered, 0 of them with an error, in " in told.err
    assert batch.observer.log == [("start", "", 0), "stop"]
    assert len(batch.recorder.of(HttpRequestEnded)) == 30
    assert len(batch.recorder.of(ProcessReady)) == 1
    assert batch.engine.num_shutdowns >= 1


def test_one_bad_line_makes_it_1() -> None:
    batch = Batch(FakeEngine(lambda request: [30]), b"{}\n" + lines(3))
    assert batch.run() == 1
    assert len(batch.names) == 4


def test_an_empty_batch_ends_with_0() -> None:
    assert Batch(FakeEngine(lambda request: [30]), b"\n \n").run() == 0


def test_a_signal_lets_what_is_under_way_finish(capsys: pytest.CaptureFixture[str]) -> None:
    engine = FakeEngine(lambda request: [30] * 50, seconds_a_token=0.01)
    batch = Batch(engine, lines(2000, max_tokens=50))
    assert batch.run(signal_once(lambda: len(engine.added) >= 100)) == 1
    assert 100 <= len(batch.names) < 2000
    assert len(batch.names) == len(engine.added)
    assert engine.aborted == []
    assert "request(s) have 20 s to finish" in capsys.readouterr().err


@pytest.mark.parametrize(("timeout", "times"), [(0.1, 1), (20.0, 2)])
def test_a_deadline_or_a_second_signal_cuts_off(
    timeout: float, times: int, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = FakeEngine(lambda request: [30] * 1000, seconds_a_token=0.1)
    batch = Batch(engine, lines(2000, max_tokens=1000), timeout)
    assert batch.run(signal_once(lambda: len(engine.added) >= 100, times=times)) == 1
    assert batch.names == []
    assert engine.num_running == 0
    assert f"0 lines answered, 0 of them with an error, {len(engine.added)} cut off" in capsys.readouterr().err


def test_a_signal_while_it_loads_ends_it() -> None:
    engine = FakeEngine(lambda request: [30])
    engine.loaded.clear()
    batch = Batch(engine, lines(3))
    assert batch.run(signal_once(lambda: bool(batch.observer.log))) == 1
    assert batch.names == []


def test_the_death_of_the_engine_ends_it_with_70(capsys: pytest.CaptureFixture[str]) -> None:
    def script(request: Any) -> list[int]:
        if len(engine.added) >= 60 and engine.dead_cause is None:
            engine.die("killed by a test")
        return [30] * 3

    engine = FakeEngine(script)
    batch = Batch(engine, lines(5000, max_tokens=3))
    assert batch.run() == 70
    assert len(batch.names) < 1000
    assert "vllm-obs: the engine died: killed by a test\n" in capsys.readouterr().err


def test_an_engine_that_does_not_start_raises_its_cause() -> None:
    engine = FakeEngine(lambda request: [30])
    engine.start_error = StartupError("no memory")
    with pytest.raises(StartupError, match="no memory"):
        Batch(engine, lines(3)).run()

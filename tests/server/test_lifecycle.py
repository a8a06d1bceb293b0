"""One server from load to exit code: drain, deadline, second signal, death of the engine, failing start."""

import asyncio
import http.client
import json
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from fake_engine import FakeEngine, balanced
from http_app import model_config

from vllm_obs.engine.errors import ConfigError, StartupError
from vllm_obs.server.config import ServerConfig
from vllm_obs.server.http_server import HttpServer
from vllm_obs.server.lifecycle import Lifecycle
from vllm_obs.server.observer import TakeOrder, TelemetryOrder
from vllm_obs.telemetry.recorder import MemoryRecorder
from vllm_obs.telemetry.records import ProcessPhase, ProcessReady, TelemetrySet

pytestmark = pytest.mark.usefixtures("frozen")

STREAM = {"prompt": "Hi", "max_tokens": 100, "stream": True}


class Client:
    """Talks to the server from another thread while the main thread serves."""

    def __init__(self, port: int, engine: FakeEngine) -> None:
        self.engine = engine
        self._port = port

    def get(self, path: str) -> tuple[int, Any]:
        reply = self._send("GET", path, None)
        return reply.status, json.loads(reply.read() or b"null")

    def post(self, body: dict[str, Any]) -> http.client.HTTPResponse:
        return self._send("POST", "/v1/completions", json.dumps(body))

    def wait_for(self, path: str, status: int) -> Any:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                found, body = self.get(path)
            except OSError:
                found = 0
            if found == status:
                return body
            time.sleep(0.01)
        raise AssertionError(f"{path} never answered {status}")

    def open_streams(self, number: int) -> list[http.client.HTTPResponse]:
        """Streams whose first event has come."""
        streams = [self.post(STREAM) for _ in range(number)]
        for stream in streams:
            assert stream.status == 200
            assert stream.readline().startswith(b"data: ")
        return streams

    def _send(self, method: str, path: str, body: str | None) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=20)
        connection.request(method, path, body, {"content-type": "application/json", "connection": "close"})
        reply = connection.getresponse()
        reply.connection = connection  # type: ignore[attr-defined]
        return reply


Scenario = Callable[[Client], Any]


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(lambda request: [30] * 1000, seconds_a_token=0.01)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound


class FakeObserver:
    """Keeps what the lifecycle does with it, in order."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.is_ready = threading.Event()

    def start(self, api_address: str, inspect_port: int, take_order: TakeOrder) -> None:
        self.log.append(("start", api_address, inspect_port))
        self.take_order = take_order

    async def address(self) -> str | None:
        while not self.is_ready.is_set():
            await asyncio.sleep(0.005)
        return "http://127.0.0.1:9999"

    async def stop(self, at_once: bool = False) -> None:
        self.log.append("stop at once" if at_once else "stop")


def serve(
    engine: FakeEngine,
    listener: socket.socket,
    scenario: Scenario,
    timeout: float = 20.0,
    watched: tuple[MemoryRecorder, FakeObserver] | None = None,
    restarts: int = 0,
) -> tuple[int, Any]:
    """The exit code of a server, and what the scenario that ran beside it gave."""
    recorder, observer = watched or (MemoryRecorder(), None)
    results: list[Any] = []
    failures: list[BaseException] = []

    def act() -> None:
        try:
            results.append(scenario(Client(listener.getsockname()[1], engine)))
        except BaseException as error:
            failures.append(error)
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)

    config = ServerConfig(shutdown_timeout=timeout, disable_uvicorn_access_log=True, engine_restarts=restarts)
    actor = threading.Thread(target=act)
    actor.start()
    try:
        lifecycle = Lifecycle(model_config(), config, balanced(engine), recorder, observer)
        code = lifecycle.run(listener, time.monotonic_ns())
    finally:
        actor.join(20)
    if failures:
        raise failures[0]
    assert not actor.is_alive()
    return code, results[0]


def stop() -> float:
    os.kill(os.getpid(), signal.SIGTERM)
    return time.monotonic()


def last_event(stream: http.client.HTTPResponse) -> Any:
    event = stream.read().split(b"data: ")[-1].strip()
    return "[DONE]" if event == b"[DONE]" else json.loads(event)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_idle_server_stops_with_zero(
    engine: FakeEngine, listener: socket.socket, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    def scenario(client: Client) -> None:
        client.wait_for("/readyz", 200)
        os.kill(os.getpid(), number)

    with caplog.at_level(logging.INFO, "vllm_obs.server.lifecycle"):
        assert serve(engine, listener, scenario) == (0, None)
    assert engine.num_shutdowns >= 1
    assert [record.getMessage() for record in caplog.records if record.name == "vllm_obs.server.lifecycle"] == [
        "shutting down: 0 request(s) have 20 s to finish",
        "stopped: all requests are finished",
    ]


def test_start_prints_phases_then_the_address(
    engine: FakeEngine, listener: socket.socket, capsys: pytest.CaptureFixture[str]
) -> None:
    def scenario(client: Client) -> None:
        client.wait_for("/readyz", 200)
        stop()

    serve(engine, listener, scenario)
    lines = capsys.readouterr().out.splitlines()
    assert "load 0.1 s" in lines[0]
    assert "1000 blocks of 16 = 16000 tokens" in lines[1]
    assert lines[-1].startswith("Ready in ")
    assert f"http://127.0.0.1:{listener.getsockname()[1] if listener.fileno() != -1 else ''}" in lines[-1]


def test_loading_server_is_not_ready_and_can_be_stopped(engine: FakeEngine, listener: socket.socket) -> None:
    engine.loaded.clear()

    def scenario(client: Client) -> Any:
        body = client.wait_for("/readyz", 503)
        refused = client.post({"prompt": "Hi"})
        stop()
        return body["error"]["reason"], refused.status

    assert serve(engine, listener, scenario) == (0, ("not_ready", 503))


def test_drain_lets_streams_finish_while_probes_are_answered(engine: FakeEngine, listener: socket.socket) -> None:
    def scenario(client: Client) -> Any:
        client.wait_for("/readyz", 200)
        streams = client.open_streams(10)
        stop()
        ready = client.wait_for("/readyz", 503)["error"]["reason"]
        alive = client.get("/livez")[0]
        refused = client.post({"prompt": "Hi"})
        reason = json.loads(refused.read())["error"]["reason"]
        headers = refused.headers["connection"], refused.headers["retry-after"]
        return ready, alive, refused.status, reason, headers, [last_event(stream) for stream in streams]

    code, seen = serve(engine, listener, scenario)
    assert code == 0
    assert seen == ("shutting_down", 200, 503, "shutting_down", ("close", "2"), ["[DONE]"] * 10)


def test_streams_longer_than_the_drain_end_with_an_error_and_one(
    engine: FakeEngine, listener: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "vllm_obs.server.lifecycle")

    def scenario(client: Client) -> Any:
        client.wait_for("/readyz", 200)
        streams = client.open_streams(2)
        waiting = threading.Thread(target=lambda: whole.append(client.post({**STREAM, "stream": False}).read()))
        whole: list[bytes] = []
        waiting.start()
        while engine.num_running < 3:
            time.sleep(0.01)
        begun = stop()
        errors = [last_event(stream)["error"]["reason"] for stream in streams]
        waiting.join(10)
        return errors, json.loads(whole[0])["error"]["reason"], time.monotonic() - begun

    code, (errors, reason, seconds) = serve(engine, listener, scenario, timeout=0.3)
    assert (code, errors, reason) == (1, ["shutting_down"] * 2, "shutting_down")
    assert seconds < 3 * 1.3
    assert caplog.messages[-1] == "stopped: 3 request(s) were cut off"
    assert engine.num_running == 0


def test_second_signal_stops_at_once_with_one(engine: FakeEngine, listener: socket.socket) -> None:
    stopped_at: list[float] = []

    def scenario(client: Client) -> list[str]:
        client.wait_for("/readyz", 200)
        streams = client.open_streams(2)
        stop()
        client.wait_for("/readyz", 503)
        stopped_at.append(stop())
        return [last_event(stream)["error"]["reason"] for stream in streams]

    observer = FakeObserver()
    watched = (MemoryRecorder(), observer)
    assert serve(engine, listener, scenario, watched=watched) == (1, ["shutting_down"] * 2)
    assert observer.log[-1] == "stop at once"
    assert time.monotonic() - stopped_at[0] < 3


def test_second_signal_while_the_engine_ends_stops_at_once_with_one(
    engine: FakeEngine, listener: socket.socket
) -> None:
    engine.is_deaf = True
    stopped_at: list[float] = []

    def scenario(client: Client) -> None:
        client.wait_for("/readyz", 200)
        stop()
        assert engine.was_asked_to_stop.wait(20)
        stopped_at.append(stop())

    assert serve(engine, listener, scenario) == (1, None)
    assert time.monotonic() - stopped_at[0] < 3


def test_http_server_that_ends_unasked_ends_the_process_with_70(
    engine: FakeEngine, listener: socket.socket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = threading.Event()

    async def on_tick(server: HttpServer, counter: int) -> bool:
        if broken.is_set():
            raise OSError("the listener is gone")
        return server.should_exit

    def scenario(client: Client) -> None:
        client.wait_for("/readyz", 200)
        broken.set()
        if not engine.was_asked_to_stop.wait(5):
            stop()

    monkeypatch.setattr(HttpServer, "on_tick", on_tick)
    assert serve(engine, listener, scenario) == (70, None)
    assert "the HTTP server ended: the listener is gone" in caplog.text


def test_http_server_that_cannot_listen_is_a_failed_start(
    engine: FakeEngine, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def startup(server: HttpServer, sockets: object) -> None:
        raise OSError("cannot listen")

    monkeypatch.setattr(HttpServer, "startup", startup)
    with pytest.raises(StartupError, match="the HTTP server ended: cannot listen"):
        serve(engine, listener, lambda client: None)
    assert engine.num_shutdowns == 1


def loops_of(engine: FakeEngine) -> list[asyncio.AbstractEventLoop]:
    """The loop that the engine runs on, once it is ready."""
    loops: list[asyncio.AbstractEventLoop] = []
    ready = engine.ready

    async def remember_loop(timeout_seconds: float) -> Any:
        loops.append(asyncio.get_running_loop())
        return await ready(timeout_seconds)

    engine.ready = remember_loop  # type: ignore[method-assign]
    return loops


def test_death_of_the_engine_is_told_and_exits_70(
    engine: FakeEngine, listener: socket.socket, capsys: pytest.CaptureFixture[str]
) -> None:
    def scenario(client: Client) -> Any:
        client.wait_for("/readyz", 200)
        streams = client.open_streams(20)
        begun = time.monotonic()
        loops[0].call_soon_threadsafe(engine.die, "killed by signal 9")
        reasons = {last_event(stream)["error"]["reason"] for stream in streams}
        return reasons, time.monotonic() - begun

    loops = loops_of(engine)
    code, (reasons, seconds) = serve(engine, listener, scenario)
    assert (code, reasons) == (70, {"engine_dead"})
    assert seconds < 6
    assert capsys.readouterr().err.splitlines()[-1] == "vllm-obs: the engine died: killed by signal 9"


def test_a_signal_while_another_engine_starts_is_a_clean_stop(engine: FakeEngine, listener: socket.socket) -> None:
    """What had been open ended with the engine that died, and nothing is left to be cut off."""
    second = FakeEngine(lambda request: [30])
    second.loaded.clear()
    engine.successors = [second]
    loops = loops_of(engine)

    def scenario(client: Client) -> Any:
        client.wait_for("/readyz", 200)
        streams = client.open_streams(3)
        loops[0].call_soon_threadsafe(engine.die, "killed by signal 9")
        reasons = {last_event(stream)["error"]["reason"] for stream in streams}
        words = client.wait_for("/readyz", 503)["error"]["reason"]
        stop()
        return reasons, words

    assert serve(engine, listener, scenario, restarts=3) == (0, ({"engine_dead"}, "restarting"))
    assert (engine.num_shutdowns >= 1, second.num_shutdowns >= 1) == (True, True)


def test_with_restarts_the_server_lives_on_and_serves(engine: FakeEngine, listener: socket.socket) -> None:
    loops = loops_of(engine)
    following = engine.successor()
    following.loaded.clear()
    engine.successors.append(following)

    def scenario(client: Client) -> Any:
        client.wait_for("/readyz", 200)
        loops[0].call_soon_threadsafe(engine.die, "killed by signal 9")
        client.wait_for("/readyz", 503)
        loops[0].call_soon_threadsafe(following.loaded.set)
        client.wait_for("/readyz", 200)
        status = client.post({"prompt": "Hi", "max_tokens": 2}).status
        stop()
        return status

    observer = FakeObserver()
    assert serve(engine, listener, scenario, watched=(MemoryRecorder(), observer), restarts=3) == (0, 200)


@pytest.mark.parametrize("error", [ConfigError("no such model"), StartupError("it did not start")])
def test_failing_start_raises_its_own_cause(
    engine: FakeEngine, listener: socket.socket, error: ConfigError | StartupError
) -> None:
    engine.start_error = error
    with pytest.raises(type(error), match=str(error)):
        serve(engine, listener, lambda client: None)


def test_the_observer_starts_beside_the_engine_and_ends_after_it(
    engine: FakeEngine, listener: socket.socket, capsys: pytest.CaptureFixture[str]
) -> None:
    observer, recorder, port = FakeObserver(), MemoryRecorder(), listener.getsockname()[1]
    engine.loaded.clear()
    shutdown = engine.shutdown

    def remember_shutdown(timeout_seconds: float = 5.0) -> None:
        observer.log.append("engine ends")
        shutdown(timeout_seconds)

    engine.shutdown = remember_shutdown  # type: ignore[method-assign]

    def scenario(client: Client) -> None:
        client.wait_for("/readyz", 503)
        deadline = time.monotonic() + 20
        while not observer.log and time.monotonic() < deadline:
            time.sleep(0.01)  # the HTTP side may answer a moment earlier
        assert observer.log == [("start", f"http://127.0.0.1:{port}", port + 1000 if port <= 64535 else 0)]
        observer.is_ready.set()
        stop()

    assert serve(engine, listener, scenario, watched=(recorder, observer))[0] == 0
    assert observer.log[-1] == "stop"
    assert "engine ends" in observer.log[1:-1]


def test_readiness_does_not_wait_for_the_observer(
    engine: FakeEngine, listener: socket.socket, capsys: pytest.CaptureFixture[str]
) -> None:
    observer = FakeObserver()
    told: list[str] = []

    def scenario(client: Client) -> None:
        client.wait_for("/readyz", 200)
        observer.is_ready.set()
        deadline = time.monotonic() + 20
        while "Inspector: http://127.0.0.1:9999\n" not in "".join(told) and time.monotonic() < deadline:
            told.append(capsys.readouterr().out)
            time.sleep(0.01)
        stop()

    serve(engine, listener, scenario, watched=(MemoryRecorder(), observer))
    assert "Inspector: http://127.0.0.1:9999\n" in "".join(told)


def test_the_inspector_is_told_after_the_server_is_ready(
    engine: FakeEngine, listener: socket.socket, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.loaded.clear()
    observer = FakeObserver()
    observer.is_ready.set()

    def scenario(client: Client) -> None:
        client.wait_for("/readyz", 503)
        time.sleep(0.2)
        engine.loaded.set()
        client.wait_for("/readyz", 200)
        stop()

    serve(engine, listener, scenario, watched=(MemoryRecorder(), observer))
    *_, ready, inspector = capsys.readouterr().out.splitlines()
    assert ready.startswith("Ready in ")
    assert inspector == "Inspector: http://127.0.0.1:9999"


def test_the_start_is_recorded_in_phases_that_touch(engine: FakeEngine, listener: socket.socket) -> None:
    recorder, observer = MemoryRecorder(), FakeObserver()
    observer.is_ready.set()

    def scenario(client: Client) -> None:
        client.wait_for("/readyz", 200)
        stop()

    serve(engine, listener, scenario, watched=(recorder, observer))
    phases: list[Any] = recorder.of(ProcessPhase)
    assert [phase.phase for phase in phases] == [
        "listen",
        "start observer",
        "load tokenizer",
        "wait for engine",
        "open",
    ]
    assert all(earlier.ended_at == later.begun_at for earlier, later in pairwise(phases))
    assert len(recorder.of(ProcessReady)) == 1


def test_an_order_is_obeyed_and_recorded_and_one_out_of_range_is_not(
    engine: FakeEngine, listener: socket.socket
) -> None:
    recorder, observer = MemoryRecorder(), FakeObserver()
    observer.is_ready.set()

    def scenario(client: Client) -> None:
        client.wait_for("/readyz", 200)
        observer.take_order(TelemetryOrder(2, 0.25))
        for order in (TelemetryOrder(4, 0.25), TelemetryOrder(-1, 0.25), TelemetryOrder(1, 1.5)):
            with pytest.raises(ValueError, match="out of range"):
                observer.take_order(order)
        stop()

    serve(engine, listener, scenario, watched=(recorder, observer))
    orders: list[Any] = recorder.of(TelemetrySet)
    assert [(order.detail_level, order.sample_rate) for order in orders] == [(2, 0.25)]

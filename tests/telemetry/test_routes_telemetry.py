"""The inspector's POST: an Observer tells the API server, and the reply is what that recorded."""

import http.client
import time
from collections.abc import Iterator
from typing import Any

import pytest
from observer_child import ObserverChild, observer_over
from scripted_run import ScriptedRun

from vllm_obs.telemetry.observer_pipe import TELEMETRY
from vllm_obs.telemetry.records import TelemetrySet
from vllm_obs.telemetry.telemetry_control import DEADLINE_SECONDS

PATH = "/inspect/telemetry"
NO_SPANS = dict.fromkeys(
    ("num_sent", "num_dropped", "num_over_budget", "num_queued", "num_links_left_out", "num_failures"), 0
)


class ObeyingServer:
    """An API server at the other end of the pipe, which does as it is told."""

    def __init__(self, run: ScriptedRun, observer: ObserverChild) -> None:
        self.observer = observer
        self.told: list[dict[str, Any]] = []
        self.is_deaf = False
        self._run = run
        observer.child.on_message(TELEMETRY, self._take)

    def _take(self, order: dict[str, Any]) -> None:
        self.told.append(order)
        if not self.is_deaf:
            self._run.api.record(TelemetrySet(**order, set_at=time.monotonic_ns()))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObeyingServer]:
    run_dir = tmp_path_factory.mktemp("run")
    with ScriptedRun(run_dir) as run:
        run.start()
        with observer_over(run_dir, detail_level=3, sample_rate=1.0) as observer:
            yield ObeyingServer(run, observer)


@pytest.fixture(autouse=True)
def as_it_was(server: ObeyingServer) -> None:
    server.is_deaf = False
    assert server.observer.ask(PATH, "POST", body={"detail_level": 3, "sample_rate": 1.0}).status == 200
    server.told.clear()


def post(server: ObeyingServer, content: bytes, kind: str | None) -> tuple[int, bytes]:
    """The answer to any bytes, called anything."""
    connection = http.client.HTTPConnection(server.observer.host, server.observer.port, timeout=30)
    try:
        connection.request("POST", PATH, content, {} if kind is None else {"content-type": kind})
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


def test_an_order_is_passed_on_and_what_is_in_force_comes_back(server: ObeyingServer) -> None:
    began_at = time.monotonic_ns()
    reply = server.observer.ask(PATH, "POST", body={"detail_level": 1})
    assert reply.status == 200
    assert server.told == [{"detail_level": 1, "sample_rate": 1.0}]
    told = reply.json
    assert (told["detail_level"], told["sample_rate"]) == (1, 1.0)
    assert began_at <= told["set_at"] <= time.monotonic_ns()
    second = server.observer.ask(PATH, "POST", body={"sample_rate": 0.1}).json
    assert (second["detail_level"], second["sample_rate"]) == (1, 0.1)
    state = server.observer.get("/inspect/state")["telemetry"]
    assert (state["detail_level"], state["sample_rate"]) == (1, 0.1)
    metrics = server.observer.ask("/metrics").body.decode()
    assert "vllm_obs_telemetry_detail_level 1.0\n" in metrics
    assert "vllm_obs_trace_sample_ratio 0.1\n" in metrics


def test_it_tells_what_telemetry_does_and_costs(server: ObeyingServer) -> None:
    told = server.observer.get(PATH)
    cpu = told.pop("cpu")
    assert told.pop("set_at") > 0
    assert told == {
        "detail_level": 3,
        "sample_rate": 1.0,
        "is_exporting": False,
        "says": "Nothing is traced: the server has no endpoint for traces. Start it with --otlp-traces-endpoint, "
        "or with OTEL_EXPORTER_OTLP_ENDPOINT in its environment.",
        "spans": NO_SPANS,
        "records": {"num_lost": 0, "lost_by_role": {}},
    }
    assert 0 < cpu["observer_seconds"] < cpu["run_seconds"]
    assert cpu["share"] == cpu["observer_seconds"] / cpu["run_seconds"]


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b'{"detail_level": 1}', None, 415),
        (b'{"detail_level": 1}', "text/plain", 415),
        (b'{"detail_level": 1}', "application/x-www-form-urlencoded", 415),
        (b'{"detail_level": 9}', "application/json", 400),
        (b"nonsense", "application/json", 400),
        (b'{"detail_level": 1}' + b" " * 5000, "application/json", 413),
        (b'{"detail_level": 1}', "Application/JSON; charset=utf-8", 200),
    ],
)
def test_only_json_that_is_an_order_is_taken(
    server: ObeyingServer, content: bytes, kind: str | None, status: int
) -> None:
    assert post(server, content, kind)[0] == status
    assert len(server.told) == (status == 200)


@pytest.mark.parametrize("headers", [{"host": "evil.example"}, {"origin": "http://evil.example"}])
def test_other_pages_give_no_orders(server: ObeyingServer, headers: dict[str, str]) -> None:
    assert server.observer.ask(PATH, "POST", headers, {"detail_level": 0}).status == 403
    assert server.told == []


def test_a_server_that_does_not_obey_is_said_in_time(server: ObeyingServer) -> None:
    server.is_deaf = True
    began_at = time.monotonic()
    reply = server.observer.ask(PATH, "POST", body={"detail_level": 1})
    assert (reply.status, reply.json["error"]["type"]) == (504, "timeout")
    assert time.monotonic() - began_at >= DEADLINE_SECONDS
    assert server.observer.get(PATH)["detail_level"] == 3

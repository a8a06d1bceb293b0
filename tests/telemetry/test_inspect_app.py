"""Every route of the inspector API answers over a real Observer, is documented, and GET changes nothing."""

import http.client
import json
import re
import socket
import time
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

import pytest
from observer_child import ObserverChild, observer_over
from scripted_run import MODEL, NUM_BLOCKS, ScriptedRun

ROUTES = {
    "/inspect/state": 200,
    "/inspect/steps": 200,
    "/inspect/steps?since=1&limit=2": 200,
    "/inspect/steps?since=1.5": 422,
    "/inspect/steps?engine=7": 404,
    "/inspect/steps/1": 200,
    "/inspect/step_at?wall_ms=1796011385190": 200,
    "/inspect/step_at?wall_ms=soon": 422,
    "/inspect/step_at?wall_ms=1&engine=7": 404,
    "/inspect/steps/999": 404,
    "/inspect/steps/1/queue": 200,
    "/inspect/steps/999/queue": 404,
    "/inspect/requests": 200,
    "/inspect/requests?state=waiting&slow_only=true&failed_only=true": 200,
    "/inspect/requests?state=nowhere": 422,
    "/inspect/requests?limit=0": 422,
    "/inspect/requests?cursor=nonsense": 400,
    "/inspect/requests?cursor=%C2%B2:x": 400,
    "/inspect/requests?cursor=%D9%A3:x": 400,
    "/inspect/requests?cursor=123456789012345678901:x": 400,
    "/inspect/requests/done": 200,
    "/inspect/requests/done-0-0": 200,
    "/inspect/requests/label%2Fwith%20slash": 200,
    "/inspect/requests/nobody": 404,
    "/inspect/requests/done/blocks": 200,
    "/inspect/requests/done/blocks?step=1": 200,
    "/inspect/requests/nobody/blocks": 404,
    "/inspect/blocks": 200,
    "/inspect/blocks?step=1": 200,
    "/inspect/blocks?engine=7": 404,
    "/inspect/blocks/map": 200,
    "/inspect/blocks/map?step=1": 200,
    "/inspect/blocks/map?engine=7": 404,
    "/inspect/streams/steps?engine=7": 404,
    "/inspect/streams/steps?since=-2": 422,
    "/inspect/streams/blocks?engine=7": 404,
    "/inspect/processes": 200,
    "/inspect/edges": 200,
    "/inspect/devices": 200,
    "/inspect/startup": 200,
    "/inspect/memory": 200,
    "/inspect/quantiles": 200,
    "/inspect/quantiles?window=run&engine=0": 200,
    "/inspect/quantiles?window=1y": 422,
    "/inspect/timeline": 200,
    "/inspect/timeline?last=2m": 200,
    "/inspect/timeline?last=forever": 422,
    "/inspect/timeline?last=nan": 422,
    "/inspect/timeline?last=%D9%A3s": 422,
    "/inspect/invariants": 200,
    "/inspect/economics": 200,
    "/inspect/economics?window=run": 200,
    "/inspect/economics?window=1y": 422,
    "/inspect/slo": 200,
    "/inspect/slo?targets=ttft=0.5,tpot=50ms": 200,
    "/inspect/slo?targets=soon": 422,
    "/inspect/trend": 200,
    "/inspect/utilisation": 200,
    "/inspect/utilisation?window=10s&engine=0": 200,
    "/inspect/utilisation?window=run": 422,
    "/inspect/utilisation?engine=7": 404,
    "/inspect/trend?every=10": 200,
    "/inspect/trend?every=7": 422,
    "/inspect/requests?account=none": 200,
    "/inspect/config": 200,
    "/inspect/version": 200,
    "/inspect/telemetry": 200,
    "/metrics": 200,
    "/livez": 200,
    "/readyz": 503,
    "/startupz": 503,
    "/": 200,
    "/docs": 404,
    "/redoc": 404,
    "/openapi.json": 200,
    "/inspect/incidents": 200,
    "/inspect/incidents/nothing": 404,
    "/inspect/nothing": 404,
}


@pytest.fixture(scope="module")
def observer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObserverChild]:
    run_dir = tmp_path_factory.mktemp("run")
    with ScriptedRun(run_dir) as run:
        run.start()
        run.serve("done", label="label/with slash")
        run.serve("twin-1", label="twin")
        run.serve("twin-2", label="twin")
        run.submit("open")
        run.step("open")
        run.submit("waits", num_prompt=40)
        run.step("open", head_reason="kv_blocks")
        run.refuse("refused")
        settings = {"served_model_names": [MODEL], "otlp_headers": {"k": "secret"}, "stall_timeout": 3600}
        with observer_over(run_dir, **settings) as observer:
            yield observer


@pytest.mark.parametrize(("path", "status"), ROUTES.items())
def test_every_route_answers(observer: ObserverChild, path: str, status: int) -> None:
    reply = observer.ask(path)
    assert (reply.status, reply.status) == (status, observer.ask_unix(path).status)
    if status != 200:
        assert reply.json["error"]["code"] == status
        assert reply.json["error"]["message"]


def test_every_route_is_documented(observer: ObserverChild) -> None:
    paths = observer.get("/openapi.json")["paths"]
    asked = {path.partition("?")[0] for path, status in ROUTES.items() if status == 200}
    plain = {path for path in asked if "requests/" not in path and "steps/" not in path}
    assert plain - {"/", "/openapi.json"} <= set(paths)
    assert all(route["summary"] for methods in paths.values() for route in methods.values())
    writing = {path for path, methods in paths.items() if set(methods) != {"get"}}
    stacks = {"/inspect/stacks", "/inspect/processes/{pid}/stacks"}
    assert writing == {"/inspect/telemetry", "/inspect/profile"} | stacks


def test_the_index_lists_every_endpoint_and_loads_nothing(observer: ObserverChild) -> None:
    reply = observer.ask("/")
    page = reply.body.decode()
    assert (reply.headers["content-type"], reply.headers["content-security-policy"]) == (
        "text/html; charset=utf-8",
        "default-src 'none'",
    )
    written = re.sub("</?code>", "`", page)
    for path, methods in observer.get("/openapi.json")["paths"].items():
        for method, route in methods.items():
            assert f"<td>{method.upper()}</td>" in page
            assert path in page
            assert escape(route["summary"]) in written
    assert '<a href="/inspect/state">/inspect/state</a>' in page
    assert not re.search(r"<script|<link|<img|src=|https?://", page)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_only_get_is_taken(observer: ObserverChild, method: str) -> None:
    assert observer.ask("/inspect/state", method).status == 405


@pytest.mark.parametrize(
    "headers", [{"host": "evil.example"}, {"origin": "http://evil.example"}, {"origin": "null"}, {"host": ""}]
)
def test_a_rebound_name_and_another_origin_get_403(observer: ObserverChild, headers: dict[str, str]) -> None:
    for path in ("/inspect/state", "/metrics", "/", "/inspect/nothing"):
        reply = observer.ask(path, headers=headers)
        assert (reply.status, reply.json["error"]["type"]) == (403, "forbidden")
    assert observer.ask("/inspect/telemetry", "POST", headers, {"detail_level": 0}).status == 403


def test_the_unix_socket_needs_no_name(observer: ObserverChild) -> None:
    assert observer.ask_unix("/metrics", {"host": "anything"}).status == 200


def test_state_says_how_it_is(observer: ObserverChild) -> None:
    state = observer.get("/inspect/state")
    assert state["health"] == {"word": "ok", "says": "1 running, 1 waiting."}
    assert (state["stalls"]["current"], state["stalls"]["past"]) == ([], [])
    assert state["models"] == [MODEL]
    assert state["requests"] == {
        "num_live": 2, "num_submitted": 0, "num_waiting": 1, "num_running": 1, "num_preempted": 0, "num_ended": 3,
    }  # fmt: skip
    (engine,) = state["engines"]
    assert (engine["num_running"], engine["num_waiting"], engine["head_reason"]) == (1, 1, "kv_blocks")
    assert engine["blocks"]["num_active"] + engine["blocks"]["num_free"] == NUM_BLOCKS
    assert state["waiting"]["by_reason"] == {"kv_blocks": 1}
    assert [row["request_id"] for row in state["waiting"]["first"]] == ["waits-0-0"]
    assert abs(state["clock"]["wall_at"] - time.time_ns()) < 60e9
    assert state["telemetry"]["num_failed_facts"] == state["telemetry"]["num_view_errors"] == 0


def test_a_label_that_two_requests_carry_lists_both(observer: ObserverChild) -> None:
    found = observer.get("/inspect/requests/twin")
    assert (found["num_requests"], found["num_sequences"]) == (2, 2)
    assert [sequence["request_id"] for sequence in found["sequences"]] == ["twin-2-0-0", "twin-1-0-0"]


def test_one_request_adds_up_and_is_explained(observer: ObserverChild) -> None:
    (sequence,) = observer.get("/inspect/requests/done")["sequences"]
    assert sum(sequence["stage_ns"].values()) == sequence["latency_ns"] == 38_000_000
    assert sequence["explanation"] == [
        "53 % of 38.0 ms was decoding 3 output tokens; 21 % (8.00 ms) computing 20 prompt tokens.",
        "None of its 20 prompt tokens came from the prefix cache.",
        "It ran alone, in 3 steps (1 to 3).",
        "It took 30.0 ms of the engine's step time (100 %) and held 0.058 block-seconds.",
        "It ended at its token limit after 3 output tokens.",
    ]
    assert sequence["steps"] == {
        "step": [1, 2, 3], "num_scheduled_tokens": [20, 1, 1], "num_computed_tokens": [0, 20, 21],
    }  # fmt: skip


def test_one_that_waits_names_who_is_ahead(observer: ObserverChild) -> None:
    (sequence,) = observer.get("/inspect/requests/waits")["sequences"]
    assert sequence["ahead"] == {"num_running": 1, "num_waiting": 0}
    assert sequence["explanation"][0].endswith("so far was waiting for KV blocks behind 1 request.")


def test_a_request_without_sequences_is_found_too(observer: ObserverChild) -> None:
    found = observer.get("/inspect/requests/refused")
    assert (found["num_requests"], found["sequences"], found["http"][0]["status"]) == (1, [], 400)
    refused = observer.get("/inspect/requests?failed_only=true")["refused"]
    assert [ended["http_id"] for ended in refused] == ["refused"]


def test_configuration_hides_what_is_secret(observer: ObserverChild) -> None:
    reply = observer.ask("/inspect/config")
    assert b"secret" not in reply.body
    assert reply.json["engines"]["0"]["num_blocks"] == NUM_BLOCKS


def test_events_tell_state_and_then_go_on(observer: ObserverChild) -> None:
    connection = http.client.HTTPConnection(observer.host, observer.port, timeout=30)
    connection.request("GET", "/inspect/events")
    reply = connection.getresponse()
    try:
        assert reply.status == 200
        assert reply.getheader("content-type", "").startswith("text/event-stream")
        events = [event for event in read_events(reply, 4) if event["event"] == "state"]
        assert len(events) >= 2
        numbers = [int(event["id"]) for event in events]
        assert numbers == sorted(set(numbers))
        assert json.loads(events[0]["data"])["requests"]["num_live"] == 2
    finally:
        reply.close()
        connection.close()


def test_a_client_that_does_not_read_is_let_go(observer: ObserverChild) -> None:
    with socket.create_connection((observer.host, observer.port)) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        sock.sendall(b"GET /inspect/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        deadline = time.monotonic() + 30
        while not observer.get("/inspect/state")["telemetry"]["num_listeners"]:
            assert time.monotonic() < deadline
    while observer.get("/inspect/state")["telemetry"]["num_listeners"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_only_so_many_may_listen(observer: ObserverChild) -> None:
    socks = [socket.create_connection((observer.host, observer.port)) for _ in range(16)]
    try:
        for sock in socks:
            sock.sendall(b"GET /inspect/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        for sock in socks:
            assert sock.recv(4096).startswith(b"HTTP/1.1 200")
        assert observer.ask("/inspect/events").status == 503
        assert observer.ask("/inspect/version").status == 200
    finally:
        for sock in socks:
            sock.close()


def read_events(reply: http.client.HTTPResponse, num_events: int) -> list[dict[str, Any]]:
    """The next events of a stream, by field."""
    events: list[dict[str, Any]] = []
    fields: dict[str, Any] = {}
    while len(events) < num_events:
        line = reply.readline().decode().rstrip("\n")
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif fields:
            if "event" in fields:
                events.append(fields)
            fields = {}
    return events


def test_the_run_directory_is_not_changed_by_looking(observer: ObserverChild) -> None:
    names = {path.name for path in Path(observer.run_dir).iterdir()}
    for path in ROUTES:
        observer.ask(path)
    assert {path.name for path in Path(observer.run_dir).iterdir()} == names

"""Hostile requests to a real server: each is answered in the one shape, and leaves the server as it was."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hostile_contents import content_cases
from hostile_documents import document_cases
from hostile_edges import ADMIN, BAD_KEYS, OWN_PATHS, large_bodies
from hostile_exchange import JSON, OTHER_KEY, Case, Hostile, Reply, check_case, check_refusal, hostile
from hostile_grammars import grammar_cases
from hostile_mutations import Mutations
from hostile_numbers import number_cases
from hostile_routes import RESPONSES, TEXT, VALID, merged, written

pytestmark = pytest.mark.timeout(300)

ROWS = (
    *(
        "H1",
        "H2",
        "H3",
        "H4",
        "H5",
        "H6",
        "H7",
        "H8",
        "H9",
        "H10",
        "H11",
        "H12",
        "H14",
        "H16",
        "H20",
        "H22",
        "H23",
    ),
    *("H31", "H32", "H33", "H34", "H35", "H42"),
)
NUM_MUTATIONS = 400
ANSWER_SECONDS = 5.0


@pytest.fixture(scope="module")
def trap() -> Iterator[socket.socket]:
    """A listener that a server would come to if it fetched anything."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield listener


@pytest.fixture(scope="module")
def server() -> Iterator[Hostile]:
    with hostile() as running:
        yield running


@pytest.fixture(scope="module")
def cases(trap: socket.socket) -> dict[str, list[Case]]:
    """Those of each row; to make their bodies takes a second."""
    url = f"http://127.0.0.1:{trap.getsockname()[1]}/image.png"
    found: dict[str, list[Case]] = {row: [] for row in ROWS}
    for case in (*document_cases(), *number_cases(), *grammar_cases(), *content_cases(url)):
        found.setdefault(case.row, []).append(case)
    return found


@pytest.mark.parametrize("row", ROWS)
def test_bodies_of_a_row_are_answered_by_name(
    row: str, server: Hostile, trap: socket.socket, cases: dict[str, list[Case]]
) -> None:
    failed = []
    for case in cases[row]:
        try:
            with server.unharmed():
                check_case(case, server.ask(case.path, case.body, case.headers, case.method))
        except AssertionError as error:
            failed.append(f"{case}\n    {error}")
    assert not failed, "\n".join(failed)
    server.check_idle()
    with pytest.raises(BlockingIOError):
        trap.accept()


def test_liveness_answers_while_long_texts_and_large_bodies_are_read(server: Hostile) -> None:
    """H21, and large bodies of every kind."""
    is_done = threading.Event()
    slowest: list[float] = []

    def watch() -> None:
        while not is_done.is_set():
            slowest.append(server.check_live())
            time.sleep(0.01)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        for path, body in large_bodies():
            reply = server.ask(path, body)
            assert reply.status in (200, 400, 413), (path, body[:60], reply.content[:200])
            assert reply.seconds < 3 * ANSWER_SECONDS
            if reply.status != 200:
                check_refusal(reply, body)
    finally:
        is_done.set()
        watching.join(20)
    assert len(slowest) > 20
    server.check_idle()


def test_spoilt_bodies_are_never_answered_with_a_5xx(server: Hostile) -> None:
    mutations = Mutations(json.loads(server.ask("/openapi.json", method="GET").content))
    for number in range(NUM_MUTATIONS):
        path, body = mutations.body(number)
        reply, events = server.first_events(path, body, 2)
        told = f"{number}: {path} {body[:200]!r} {reply.status} {reply.content[:300]!r}"
        assert reply.status < 500, told
        assert reply.seconds < ANSWER_SECONDS, told
        assert not any(event.get("error") for event in events if event.get("type") != "response.created"), told
        if reply.status != 200:
            check_refusal(reply, body)
        server.check_live()
    server.check_idle()


@pytest.mark.parametrize("key", ["", "Bearer " + OTHER_KEY])
def test_other_spellings_of_a_path_are_not_found_without_redirect(key: str, server: Hostile) -> None:
    """H25: without a key all of them are 401."""
    for path in OWN_PATHS:
        reply = server.ask(path, headers={"authorization": key, "host": "evil.example"}, method="GET")
        assert reply.status == (404 if key else 401), (path, reply)
        assert "location" not in reply.headers
        assert b"evil" not in reply.content
        check_refusal(reply, path.encode())
    server.check_live()


def test_all_bad_keys_get_one_answer(server: Hostile) -> None:
    """H26; the time it takes does not depend on the key, which is compared as a digest."""
    bodies = set()
    for path in ("/v1/models", TEXT, "/nothing"):
        for key in BAD_KEYS:
            reply = server.ask(path, b"{", {"authorization": key})
            assert reply.status == 401, (key[:40], reply)
            check_refusal(reply, key)
            bodies.add(reply.content)
    reply = server.ask("/v1/models", headers={"authorization": b"Bearer " + b"x" * 1_000_000})
    assert reply.status == 431
    assert len(bodies) == 1
    assert raw_status(server, b"authorization: Bearer s3cret-one\r\nauthorization: Bearer s3cret-one\r\n") == 401
    assert raw_status(server, b"authorization: Bearer s3cret-one \r\n") == 401
    server.check_live()


def raw_status(server: Hostile, headers: bytes) -> int:
    with socket.create_connection(("127.0.0.1", server.server.port), 20) as connection:
        connection.sendall(b"GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n" + headers + b"\r\n")
        return int(connection.recv(65536).split()[1])


def test_labels_are_labels_and_nothing_else(server: Hostile) -> None:
    """H36 and H37."""
    labels = ("x" * 10_000, "1.2.3.4:5", "grün".encode(), b"\xff\xfe", "a/../b?c#d", "{{7*7}}", "same")
    for label in labels:
        reply = server.ask(TEXT, merged(TEXT, {}), {"x-request-id": label})
        assert (reply.status, len(reply.headers["x-request-id"]) <= 128) == (200, True)
        assert reply.headers["x-request-id"].isascii()
    replies: list[Reply | int] = []
    asked = [threading.Thread(target=lambda: replies.append(ask_labelled(server))) for _ in range(4)]
    for thread in asked:
        thread.start()
    for thread in asked:
        thread.join(30)
    assert replies == [200] * 4
    for parent in (
        "zz",
        "00-0-0-00",
        "00-" + "0" * 32 + "-" + "0" * 16 + "-01",
        "ff-" + "a" * 32 + "-" + "b" * 16 + "-01",
    ):
        traced = {"traceparent": parent, "tracestate": "a=" + "b" * 1000, "baggage": "c=" + "d" * 1000}
        assert server.ask(TEXT, merged(TEXT, {}), traced).status == 200
    assert server.ask(TEXT, merged(TEXT, {}), {"baggage": "x" * 1_000_000}).status == 431
    server.check_live()


def ask_labelled(server: Hostile) -> int:
    connection = server.server.connect(20)
    try:
        headers = {**JSON, "authorization": f"Bearer {OTHER_KEY}", "x-request-id": "same"}
        connection.request("POST", TEXT, merged(TEXT, {"max_tokens": 8}), headers)
        return connection.getresponse().status
    finally:
        connection.close()


def test_what_another_key_keeps_is_not_there(server: Hostile) -> None:
    """H40."""
    body = merged(RESPONSES, {"store": True})
    running = merged(RESPONSES, {"store": True, "background": True, "max_output_tokens": 200})
    ids = [json.loads(server.ask(RESPONSES, asked).content)["id"] for asked in (body, running)]
    other = {"authorization": f"Bearer {OTHER_KEY}"}
    for place in (
        *ids,
        "resp_1",
        "resp_" + "0" * 16,
        ids[0][:-1],
        ids[0].upper(),
        "%2e%2e",
        "*",
        "resp_%00",
        "x" * 9000,
    ):
        for method, rest in (
            ("GET", ""),
            ("GET", "?stream=true"),
            ("GET", "/input_items"),
            ("POST", "/cancel"),
            ("DELETE", ""),
        ):
            reply = server.ask(f"{RESPONSES}/{place}{rest}", headers=other, method=method)
            assert reply.status == 404, (place, method, rest, reply)
            check_refusal(reply, place.encode() if place not in ids else b"")
    named = merged(RESPONSES, {"previous_response_id": ids[0]})
    assert server.ask(RESPONSES, named, other).status == 404
    assert server.ask(f"{RESPONSES}/{ids[0]}", method="GET").status == 200
    assert server.ask(f"{RESPONSES}/{ids[1]}/cancel").status == 200
    server.check_idle()


def test_orders_are_not_on_the_public_port(server: Hostile) -> None:
    """H43."""
    for name in ADMIN:
        for method in ("GET", "POST", "PUT", "DELETE"):
            reply = server.ask(f"/{name}", written({}), method=method)
            assert (reply.status, reply.error["reason"]) == (404, "not_found"), (name, method)
            check_refusal(reply)


def test_inspector_answers_no_name_that_was_bound_to_its_address(server: Hostile) -> None:
    """H44."""
    own = server.server.inspector
    connection = http.client.HTTPConnection(own, timeout=20)
    evil = f"evil.example:{connection.port}"
    foreign: tuple[dict[str, Any], ...] = (
        {"host": "evil.example"},
        {"host": evil, "origin": f"http://{evil}"},
        {"host": own, "origin": "http://evil.example"},
        {"host": own, "origin": "null"},
        {"host": f"{own}.evil.example"},
        {"host": f"localhost@evil.example:{connection.port}"},
        {"host": ""},
    )
    for method, path in (
        ("GET", "/inspect/state"),
        ("GET", "/"),
        ("POST", "/inspect/profile"),
        ("GET", "/metrics"),
    ):
        for headers in foreign:
            connection.putrequest(method, path, skip_host=True)
            for name, value in headers.items():
                connection.putheader(name, value)
            connection.endheaders()
            response = connection.getresponse()
            content = response.read()
            assert (response.status, json.loads(content)["error"]["code"]) == (403, 403), (method, path, headers)
            assert b"evil" not in content
    connection.request("GET", "/inspect/state", headers={"host": own})
    assert connection.getresponse().status == 200
    connection.close()


def test_every_route_was_tried(server: Hostile) -> None:
    document = json.loads(server.ask("/openapi.json", method="GET").content)
    taking = {path for path, routes in document["paths"].items() if "requestBody" in routes.get("post", {})}
    assert taking == set(VALID)

"""Hostile requests to a real server: each is answered in the one shape, and leaves the server as it was."""

import http.client
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hostile_bytes import BODY, END, POST, HalfSaid, only_reply, read_all, reply_in, sent_bytes
from hostile_contents import content_cases
from hostile_documents import document_cases
from hostile_edges import ADMIN, BAD_KEYS, OWN_PATHS, large_bodies
from hostile_exchange import JSON, OTHER_KEY, Case, Hostile, Reply, check_case, check_refusal, hostile
from hostile_grammars import grammar_cases
from hostile_mutations import Mutations
from hostile_numbers import number_cases
from hostile_routes import RESPONSES, TEXT, VALID, merged, written
from observed_server import await_that

pytestmark = pytest.mark.timeout(300)
GRAMMAR_SECONDS = 3 * 1.0
HALF: dict[str, tuple[bytes, float, str]] = {
    "a head": (b"GET /livez HTTP/1.1\r\nhost: ", 10.0, "head_timeout"),
    "a body": (POST + b"content-length: 100\r\n\r\n" + BODY, 30.0, "body_timeout"),
    "nothing": (b"", 10.0, ""),
}
"""Of what is half sent: the bytes, after how many seconds it is refused, and why."""

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


@pytest.fixture(scope="module", autouse=True)
def half_said(server: Hostile) -> dict[str, HalfSaid]:
    """Connections that are waited for while everything else goes on."""
    return {what: HalfSaid(server.server.port, content) for what, (content, _, _) in HALF.items()}


@pytest.mark.parametrize("row", ROWS)
def test_bodies_of_a_row_are_answered_by_name(
    row: str, server: Hostile, trap: socket.socket, cases: dict[str, list[Case]]
) -> None:
    failed = []
    for case in cases[row]:
        try:
            with server.unharmed():
                reply = server.ask(case.path, case.body, case.headers, case.method)
                check_case(case, reply)
                assert row != "H31" or reply.status == 200 or reply.seconds < GRAMMAR_SECONDS, reply.seconds
        except AssertionError as error:
            failed.append(f"{case}\n    {error}")
    assert not failed, "\n".join(failed)
    server.check_idle()
    with pytest.raises(BlockingIOError):
        trap.accept()


def test_liveness_answers_while_long_texts_and_large_bodies_are_read(server: Hostile) -> None:
    """H21, and large bodies of every kind."""
    bodies = large_bodies()  # first: to write them holds this process up, the thread that watches too
    is_done = threading.Event()
    slowest: list[float] = []

    def watch() -> None:
        while not is_done.is_set():
            slowest.append(server.check_live())
            time.sleep(0.01)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        for path, body in bodies:
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
        with server.unharmed():
            reply = server.ask(path, headers={"authorization": key, "host": "evil.example"}, method="GET")
        assert reply.status == (404 if key else 401), (path, reply)
        assert "location" not in reply.headers
        assert b"evil" not in reply.content
        check_refusal(reply, path.encode())
    server.check_idle()


def test_all_bad_keys_get_one_answer(server: Hostile) -> None:
    """H26; the time it takes does not depend on the key, which is compared as a digest."""
    bodies = set()
    for path in ("/v1/models", TEXT, "/nothing"):
        for key in BAD_KEYS:
            with server.unharmed():
                reply = server.ask(path, b"{", {"authorization": key})
            assert reply.status == 401, (key[:40], reply)
            check_refusal(reply, key)
            bodies.add(reply.content)
    with server.unharmed():
        reply = server.ask("/v1/models", headers={"authorization": b"Bearer " + b"x" * 1_000_000})
    assert reply.status == 401
    bodies.add(reply.content)
    assert len(bodies) == 1
    key = b"authorization: Bearer s3cret-one"
    for headers in (key + END + key + END, key + b" \r\n"):
        head = b"GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        reply = only_reply(server.server.port, head + headers + END)
        assert (reply.status, reply.content in bodies) == (401, True)
    server.check_idle()


def test_bytes_that_are_no_request_get_one_refusal_and_are_counted(server: Hostile) -> None:
    """H18 and H27 to H29."""
    before, num_odd = num_invalid(server), 0
    for sent in sent_bytes():
        with server.unharmed():
            reply = only_reply(server.server.port, sent.content)
        assert (reply.status, reply.error["reason"]) == (sent.status, sent.reason), (sent.row, sent.content[:80])
        check_refusal(reply, sent.content)
        num_odd += sent.reason == "invalid_http"
    await_that(lambda: num_invalid(server) >= before + num_odd)
    assert num_invalid(server) == before + num_odd
    server.check_idle()


def num_invalid(server: Hostile) -> int:
    """How often what came was no HTTP, so far."""
    pattern = r'^vllm_obs_errors_total\{[^}]*type="invalid_http"[^}]*\} (\S+)$'
    return int(sum(map(float, re.findall(pattern, server.server.exposition(), re.MULTILINE))))


def test_odd_ways_to_ask_are_served(server: Hostile) -> None:
    """H38, H39 and H41."""
    port = server.server.port
    ranges = ", ".join(f"{number}-{number + 1}" for number in range(3000))
    with server.unharmed():
        odd = {"accept": "image/png", "range": f"bytes={ranges}"}
        assert server.ask(TEXT, merged(TEXT, {}), odd).status == 200
    length = b"content-length: %d\r\n" % len(BODY)
    with server.unharmed(), socket.create_connection(("127.0.0.1", port), 20) as connection:
        connection.sendall(POST + length + b"connection: close\r\nexpect: 100-continue\r\n\r\n" + BODY)
        assert read_all(connection).startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK")
    with server.unharmed(), socket.create_connection(("127.0.0.1", port), 20) as connection:
        asked = (b"GET /livez HTTP/1.1\r\nhost: x\r\nx-request-id: r%d\r\n" % number for number in range(1000))
        connection.sendall(END.join(asked) + b"connection: close\r\n\r\n")
        labels = re.findall(rb"x-request-id: r(\d+)", read_all(connection))
        assert [int(label) for label in labels] == list(range(1000))
    with server.unharmed(), socket.create_connection(("127.0.0.1", port), 20) as connection:
        connection.sendall(POST + length + END + BODY)
        connection.shutdown(socket.SHUT_WR)
        # Who may have gone altogether is sent interim responses while it waits.
        answered = read_all(connection).replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")
        assert answered.startswith(b"HTTP/1.1 200 OK")
    long = merged(TEXT, {"max_tokens": 1500, "ignore_eos": True, "stream": True})
    with server.unharmed(), socket.create_connection(("127.0.0.1", port), 20) as connection:
        connection.sendall(POST + b"content-length: %d\r\n\r\n" % len(long) + long)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 OK")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    server.check_idle(3 * 1.0)


def test_labels_are_labels_and_nothing_else(server: Hostile) -> None:
    """H36 and H37."""
    size = server.resident_bytes()
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
    server.check_size(size)
    server.check_idle()


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
            with server.unharmed():
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


@pytest.mark.parametrize("what", HALF)
def test_who_sends_half_and_waits_is_refused_at_the_deadline(
    what: str, server: Hostile, half_said: dict[str, HalfSaid]
) -> None:
    """H19, and of P23 the deadlines."""
    content, seconds, reason = HALF[what]
    half = half_said[what]
    half.close()
    assert seconds - 1.0 < half.seconds < 3 * seconds
    if not reason:
        assert half.data == b""
        return
    reply = reply_in(half.data, half.seconds)
    assert (reply.status, reply.error["reason"]) == (408, reason)
    check_refusal(reply, content)
    server.check_idle()


def test_every_route_was_tried(server: Hostile) -> None:
    document = json.loads(server.ask("/openapi.json", method="GET").content)
    taking = {path for path, routes in document["paths"].items() if "requestBody" in routes.get("post", {})}
    assert taking == set(VALID)

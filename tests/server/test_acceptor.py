"""One accepts for several API servers: who has fewest gets the next, and what is dead or hangs gets none."""

import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from vllm_obs.server import acceptor as acceptor_module
from vllm_obs.server.acceptor import Acceptor


class Server:
    """The far end of a pair: takes the connections that come through it."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.theirs.settimeout(5)
        self.taken: list[socket.socket] = []

    def take(self) -> socket.socket:
        _, [descriptor], _, _ = socket.recv_fds(self.theirs, 1, 1)
        self.taken.append(socket.socket(fileno=descriptor))
        return self.taken[-1]

    def take_what_is_there(self) -> int:
        self.theirs.setblocking(False)
        try:
            while True:
                self.take()
        except BlockingIOError:
            return len(self.taken)

    def close(self) -> None:
        self.theirs.close()
        for connection in self.taken:
            connection.close()


@pytest.fixture(params=["tcp", "unix"])
def listener(request: pytest.FixtureRequest, tmp_path: object) -> Iterator[socket.socket]:
    family = socket.AF_INET if request.param == "tcp" else socket.AF_UNIX
    with socket.socket(family) as bound:
        bound.bind(("127.0.0.1", 0) if request.param == "tcp" else f"{tmp_path}/s")
        yield bound


@pytest.fixture
def failures() -> list[str]:
    return []


@pytest.fixture
def acceptor(listener: socket.socket, failures: list[str]) -> Iterator[Acceptor]:
    made = Acceptor(listener, failures.append)
    yield made
    made.close()
    assert failures == []


@pytest.fixture
def servers(acceptor: Acceptor) -> Iterator[list[Server]]:
    made = [Server(), Server(), Server()]
    for index, server in enumerate(made):
        acceptor.open(index, server.ours)
    yield made
    for server in made:
        server.close()


@pytest.fixture
def connect(listener: socket.socket) -> Iterator[Callable[[], socket.socket]]:
    made: list[socket.socket] = []

    def connect() -> socket.socket:
        made.append(socket.socket(listener.family))
        made[-1].settimeout(5)
        made[-1].connect(listener.getsockname())
        return made[-1]

    yield connect
    for connection in made:
        connection.close()


def eventually(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_a_connection_that_is_handed_over_talks_to_its_server(
    servers: list[Server], connect: Callable[[], socket.socket]
) -> None:
    client = connect()
    taken = servers[0].take()
    client.sendall(b"hello")
    assert taken.recv(5) == b"hello"
    taken.close()
    assert client.recv(1) == b"", "the launcher keeps no copy"


def test_connections_are_spread_evenly(servers: list[Server], connect: Callable[[], socket.socket]) -> None:
    for _ in range(9):
        connect()
    eventually(lambda: sum(server.take_what_is_there() for server in servers) == 9)
    assert [len(server.taken) for server in servers] == [3, 3, 3]


def test_who_has_fewest_open_gets_the_next(
    acceptor: Acceptor, servers: list[Server], connect: Callable[[], socket.socket]
) -> None:
    for index, num_connections in enumerate((5, 1, 3)):
        acceptor.report(index, True, 0, num_connections)
    for _ in range(6):
        connect()
    eventually(lambda: sum(server.take_what_is_there() for server in servers) == 6)
    assert [len(server.taken) for server in servers] == [0, 4, 2]


def test_who_does_not_take_is_left_out_while_another_does(
    acceptor: Acceptor,
    servers: list[Server],
    connect: Callable[[], socket.socket],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(acceptor_module, "LATE_SECONDS", 0.05)
    for _ in range(3):
        connect()
    eventually(lambda: sum(server.take_what_is_there() for server in servers) == 3)
    for index in (1, 2):
        acceptor.report(index, False, num_taken=1, num_connections=1)
    time.sleep(0.1)
    for _ in range(4):
        connect()
    eventually(lambda: sum(server.take_what_is_there() for server in servers) == 7)
    assert [len(server.taken) for server in servers] == [1, 3, 3]


def test_who_has_said_nothing_for_long_is_left_out_before_it_was_handed_any(
    acceptor: Acceptor,
    servers: list[Server],
    connect: Callable[[], socket.socket],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for index in range(3):
        acceptor.report(index, True, num_taken=0, num_connections=0)
    monkeypatch.setattr(acceptor_module, "SILENT_SECONDS", 1.5)
    time.sleep(1.6)
    acceptor.report(1, True, num_taken=0, num_connections=7)
    connect()
    eventually(lambda: sum(server.take_what_is_there() for server in servers) == 1)
    assert [len(server.taken) for server in servers] == [0, 1, 0]


def test_who_has_not_started_is_left_out_while_another_has(
    acceptor: Acceptor, servers: list[Server], connect: Callable[[], socket.socket]
) -> None:
    acceptor.report(1, True, 0, 7)
    for _ in range(3):
        connect()
    eventually(lambda: sum(server.take_what_is_there() for server in servers) == 3)
    assert [len(server.taken) for server in servers] == [0, 3, 0]


def test_a_dead_server_loses_its_own_connections_only(
    acceptor: Acceptor, servers: list[Server], connect: Callable[[], socket.socket]
) -> None:
    clients = [connect() for _ in range(3)]
    eventually(lambda: sum(server.take_what_is_there() for server in servers[1:]) == 2)
    servers[0].theirs.close()  # with a connection on its way
    assert clients[0].recv(1) == b""
    acceptor.close_place(0)
    later = [connect() for _ in range(4)]
    eventually(lambda: sum(server.take_what_is_there() for server in servers[1:]) == 6)
    for server in servers[1:]:
        for connection in server.taken:
            connection.sendall(b"x")
    assert Counter(client.recv(1) for client in (*clients[1:], *later)) == {b"x": 6}


def test_connections_wait_while_no_server_is_there(
    acceptor: Acceptor, listener: socket.socket, connect: Callable[[], socket.socket]
) -> None:
    first, second = Server(), Server()
    acceptor.open(0, first.ours)
    acceptor.close_place(0)
    client = connect()
    time.sleep(0.05)
    acceptor.open(0, second.ours)
    second.take().sendall(b"x")
    assert client.recv(1) == b"x"
    first.close()
    second.close()


def test_that_none_takes_connections_is_no_news_while_they_end(
    acceptor: Acceptor,
    servers: list[Server],
    connect: Callable[[], socket.socket],
    caplog: pytest.LogCaptureFixture,
) -> None:
    acceptor.is_ending = True
    for server in servers:
        server.theirs.close()
    connect()
    time.sleep(0.2)
    assert caplog.messages == []
    acceptor.is_ending = False
    eventually(lambda: caplog.messages == ["no API server takes connections; they wait"])

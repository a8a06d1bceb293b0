"""An API server takes the connections that its launcher accepted."""

import asyncio
import resource
import socket
from collections.abc import Callable

import pytest

from vllm_obs.server.handed_connections import HandedConnections

Use = Callable[[HandedConnections, socket.socket, list[socket.socket]], None]


def handed(use: Use, turns: int = 3) -> tuple[HandedConnections, list[socket.socket]]:
    async def run() -> tuple[HandedConnections, list[socket.socket]]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        taken: list[socket.socket] = []
        connections = HandedConnections(theirs, taken.append)
        use(connections, ours, taken)
        for _ in range(turns):
            await asyncio.sleep(0.01)
        connections.stop()
        ours.close()
        return connections, taken

    return asyncio.run(run())


def test_each_message_is_a_connection() -> None:
    pairs = [socket.socketpair() for _ in range(20)]

    def use(connections: HandedConnections, ours: socket.socket, taken: list[socket.socket]) -> None:
        for _, far in pairs:
            socket.send_fds(ours, [b"c"], [far.fileno()])

    connections, taken = handed(use)
    assert (connections.num_taken, len(taken)) == (20, 20)
    for (near, far), connection in zip(pairs, taken, strict=True):
        assert not connection.getblocking()
        assert not connection.get_inheritable()
        connection.send(b"x")
        assert near.recv(1) == b"x"
        for each in (near, far, connection):
            each.close()


def test_what_is_no_connection_is_counted_and_closed() -> None:
    with open("/dev/null") as file:  # noqa: PTH123

        def use(connections: HandedConnections, ours: socket.socket, taken: list[socket.socket]) -> None:
            ours.send(b"c")
            socket.send_fds(ours, [b"c"], [file.fileno()])

        connections, taken = handed(use)
    assert (connections.num_taken, taken) == (2, [])


def test_the_end_of_the_launcher_ends_the_reading() -> None:
    connections, taken = handed(lambda connections, ours, taken: ours.close())
    assert (connections.num_taken, taken) == (0, [])


def test_a_connection_without_a_file_left_for_it_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    near, far = socket.socketpair()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    def use(connections: HandedConnections, ours: socket.socket, taken: list[socket.socket]) -> None:
        socket.send_fds(ours, [b"c"], [far.fileno()])
        far.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (near.fileno(), limits[1]))

    try:
        connections, taken = handed(use)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert (connections.num_taken, taken) == (1, [])
    assert near.recv(1) == b"", "who connected is told at once"
    near.close()

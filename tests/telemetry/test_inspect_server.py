"""The inspector's sockets: private, in the place of a dead Observer's, on a free port where theirs is taken."""

import asyncio
import os
import socket
import stat
from pathlib import Path

import pytest
from starlette.responses import PlainTextResponse

from vllm_obs.telemetry.inspect_server import InspectServer, ListenError, bind_tcp, bind_unix


def test_a_taken_port_gives_way_to_a_free_one() -> None:
    with bind_tcp("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with bind_tcp("127.0.0.1", port) as second:
            assert second.getsockname()[1] not in (0, port)


def test_answers_are_not_held_back_to_be_sent_together() -> None:
    """An event loop asks for that only where the socket names its protocol."""
    with bind_tcp("127.0.0.1", 0) as sock:
        assert sock.proto == socket.IPPROTO_TCP


@pytest.mark.parametrize("host", ["203.0.113.7", "no such host"])
def test_a_host_that_is_not_ours_is_named(host: str) -> None:
    with pytest.raises(ListenError, match=host):
        bind_tcp(host, 0)


def test_the_unix_socket_is_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with bind_unix(tmp_path):
            assert stat.S_IMODE((tmp_path / "observer.sock").stat().st_mode) == 0o600
            assert os.umask(0) == 0
    finally:
        os.umask(before)


def test_a_dead_observers_socket_is_replaced(tmp_path: Path) -> None:
    with bind_unix(tmp_path), bind_unix(tmp_path):
        client = socket.socket(socket.AF_UNIX)
        directory_fd = os.open(tmp_path, os.O_RDONLY)
        with client:
            client.connect(f"/proc/self/fd/{directory_fd}/observer.sock")
        os.close(directory_fd)


def test_what_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "observer.sock").write_text("precious")
    with pytest.raises(OSError, match="in use"):
        bind_unix(tmp_path)
    assert (tmp_path / "observer.sock").read_text() == "precious"
    with pytest.raises(ListenError, match=r"observer\.sock"):
        InspectServer(PlainTextResponse("x"), "127.0.0.1", 0, tmp_path)


def test_a_path_longer_than_an_address_holds_can_be_listened_at(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    with bind_unix(deep):
        assert (deep / "observer.sock").is_socket()


def test_it_answers_and_stops_with_a_connection_open(tmp_path: Path) -> None:
    async def scenario() -> bytes:
        server = InspectServer(PlainTextResponse("hello"), "127.0.0.1", 0, tmp_path)
        await server.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = await reader.readuntil(b"hello")
        await asyncio.wait_for(server.stop(), 10)
        writer.close()
        await writer.wait_closed()
        return answer

    assert asyncio.run(scenario()).startswith(b"HTTP/1.1 200 OK")

"""Binding the public socket."""

import socket
import stat
from pathlib import Path

import pytest

from vllm_obs.cli.listener import bound_listener
from vllm_obs.engine.errors import ConfigError
from vllm_obs.server.config import ServerConfig


def local(port: int = 0) -> ServerConfig:
    return ServerConfig(host="127.0.0.1", port=port)


def test_a_free_port_is_bound_but_does_not_answer_yet() -> None:
    with bound_listener(local()) as listener:
        with pytest.raises(ConnectionRefusedError), socket.create_connection(listener.getsockname(), timeout=1):
            pass
        listener.listen()
        socket.create_connection(listener.getsockname(), timeout=1).close()
    assert listener.fileno() == -1


def test_a_port_that_is_bound_is_taken_even_before_anybody_listens() -> None:
    with bound_listener(local()) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 is in use"), bound_listener(local(port)):
            pass


def test_a_port_is_free_again_at_once() -> None:
    with bound_listener(local()) as listener:
        port = listener.getsockname()[1]
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does before it listens
        listener.listen()
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            listener.accept()[0].close()  # closed here first: TIME_WAIT is on our side
    with bound_listener(local(port)) as again:
        assert again.getsockname()[1] == port


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])
def test_an_address_of_another_machine(host: str) -> None:
    with (
        pytest.raises(ConfigError, match=f"--host {host} is no address of this machine"),
        bound_listener(ServerConfig(host=host, port=0)),
    ):
        pass


def test_a_unix_socket_comes_and_goes(tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    with bound_listener(ServerConfig(uds=str(path))):
        assert stat.S_ISSOCK(path.stat().st_mode)
    assert not path.exists()


def test_a_stale_unix_socket_is_replaced_and_a_live_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    with bound_listener(ServerConfig(uds=str(path))) as listener:
        listener.listen()
        with pytest.raises(ConfigError, match="is in use"), bound_listener(ServerConfig(uds=str(path))):
            pass
        assert path.exists()


def test_a_file_at_the_path_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    with (
        pytest.raises(ConfigError, match="exists and is not a socket"),
        bound_listener(ServerConfig(uds=str(path))),
    ):
        pass
    assert path.read_text() == "mine"


def test_a_path_that_is_too_long() -> None:
    with pytest.raises(ConfigError, match="at most 107"), bound_listener(ServerConfig(uds="/tmp/" + "x" * 200)):
        pass

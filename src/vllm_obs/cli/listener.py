"""The one public socket: bound before anything is started, so that a busy port costs no model load."""

import contextlib
import errno
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from vllm_obs.engine.errors import ConfigError
from vllm_obs.server.config import ServerConfig

MAX_UDS_BYTES = 107


@contextlib.contextmanager
def bound_listener(config: ServerConfig) -> Iterator[socket.socket]:
    """The bound socket of a server, not listening yet; closed at the end, and its file removed if it has one.

    Raises ConfigError when the port or path is taken, not allowed, or no address of this machine.
    """
    if config.uds is not None:
        with _bound_path(config.uds) as listener:
            yield listener
        return
    with bind_port(config.host, config.port) as listener:
        yield listener


def bind_port(host: str | None, port: int, flag: str = "--port") -> socket.socket:
    """A TCP socket bound to the port, which `flag` sets.

    SO_REUSEADDR lets a restart have the port at once. It is taken back after the bind, because two bound sockets
    that both have it share the port until one listens; whoever listens sets it again.
    """
    listener = socket.socket(_family(host), socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host or "", port))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    except OSError as error:
        listener.close()
        raise ConfigError(_port_problem(error, host, port, flag)) from error
    listener.set_inheritable(False)
    return listener


def bind_or_free(host: str, port: int) -> socket.socket:
    """The port, or any free one where that is taken."""
    try:
        return bind_port(host, port)
    except ConfigError:
        return bind_port(host, 0)


def shown_host(host: str) -> str:
    """The host as it stands in an address that people open here."""
    return f"[{host}]" if ":" in host else "127.0.0.1" if host in ("0.0.0.0", "") else host


def _family(host: str | None) -> socket.AddressFamily:
    return socket.AF_INET6 if host and ":" in host else socket.AF_INET


def _port_problem(error: OSError, host: str | None, port: int, flag: str) -> str:
    where = f" on {host}" if host else ""
    if error.errno == errno.EADDRINUSE:
        return f"port {port}{where} is in use; choose another with {flag}"
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return f"--host {host:.64} is no address of this machine"
    return f"port {port}{where} cannot be opened: {error.strerror or error}"


@contextlib.contextmanager
def _bound_path(path: str) -> Iterator[socket.socket]:
    if len(path.encode()) > MAX_UDS_BYTES:
        raise ConfigError(f"--uds path has {len(path.encode())} bytes; at most {MAX_UDS_BYTES} are allowed")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        listener.bind(path)
    except OSError as error:
        listener.close()
        raise ConfigError(f"--uds {path}: {error.strerror or error}") from error
    except ConfigError:
        listener.close()
        raise
    try:
        yield listener
    finally:
        listener.close()
        Path(path).unlink(missing_ok=True)


def _remove_stale(path: str) -> None:
    """Remove a socket file that nobody answers on; anything else at the path is left and refused."""
    try:
        mode = Path(path).lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"--uds {path} exists and is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            Path(path).unlink(missing_ok=True)
            return
        except TimeoutError:
            pass
    raise ConfigError(f"--uds {path} is in use")

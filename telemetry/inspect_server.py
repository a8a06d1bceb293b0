"""InspectServer: the inspector API's two listeners, loopback TCP for people, a Unix socket for our processes."""

import asyncio
import contextlib
import errno
import os
import resource
import socket
import stat
from collections.abc import Generator
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from vllm_obs.telemetry.accept_errors import AcceptErrors
from vllm_obs.telemetry.inspect_guard import InspectGuard
from vllm_obs.telemetry.inspect_protocol import KEEP_ALIVE_SECONDS, protocol_of

SOCKET_NAME = "observer.sock"
CLOSE_SECONDS = 1
MAX_CONNECTIONS = 128
"""Of each listener; fewer where this process may open few files."""
FILES_PER_CONNECTION = 8
"""So many files allowed make room for one connection: rings, exporters and the other listener need theirs."""
_BACKLOG = 128
_ACCEPTED_AT_ONCE = 16
"""asyncio accepts so many before the first of them is counted."""


class ListenError(Exception):
    """The inspector API has no address to listen at."""


class InspectServer:
    """Serves `app` on both listeners in the running event loop until `stop`.

    What comes over TCP passes the guard against re-bound names; the Unix socket is 0600 in a 0700 directory.
    Without a directory (a replay) there is no Unix socket. Raises ListenError.
    """

    def __init__(self, app: ASGIApp, host: str, port: int, socket_dir: Path | None) -> None:
        self._tcp = bind_tcp(host, port)
        self.host, self.port = self._tcp.getsockname()[:2]
        listeners: list[tuple[ASGIApp, socket.socket]] = [(InspectGuard(app, host), self._tcp)]
        if socket_dir is not None:
            try:
                listeners.append((app, bind_unix(socket_dir)))
            except OSError as error:
                self._tcp.close()
                raise ListenError(f"cannot listen at {socket_dir / SOCKET_NAME}: {error.strerror}") from None
        self._sockets = [sock for _, sock in listeners]
        max_connections = connection_limit(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self._servers = [_QuietServer(guarded, max_connections) for guarded, _ in listeners]
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def address(self) -> str:
        """The URL of the TCP listener."""
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    async def start(self) -> None:
        """Accept connections from now on; the loop's exception handler is set. Raises ListenError."""
        asyncio.get_running_loop().set_exception_handler(AcceptErrors())
        for server, sock in zip(self._servers, self._sockets, strict=True):
            self._tasks.append(asyncio.create_task(server.serve(sockets=[sock]), name="inspector listener"))
        while not all(server.started for server in self._servers):
            if any(task.done() for task in self._tasks):
                raise ListenError("the inspector API's listener ended as it started")
            await asyncio.sleep(0.005)
        for sock in self._sockets:
            # asyncio takes one number for both; who has to wait in the kernel's line may.
            sock.listen(_BACKLOG)

    async def stop(self) -> None:
        """Close listeners and connections within CLOSE_SECONDS."""
        for server in self._servers:
            server.end()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=CLOSE_SECONDS + 0.5)
            for task in late:
                task.cancel()
        self.close()

    def close(self) -> None:
        """Let go of the sockets."""
        for sock in self._sockets:
            sock.close()


class _QuietServer(uvicorn.Server):
    """No signals of its own, no log but of what goes wrong."""

    def __init__(self, app: ASGIApp, max_connections: int) -> None:
        config = uvicorn.Config(
            app,
            http=protocol_of(max_connections),
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            backlog=_ACCEPTED_AT_ONCE,
            timeout_keep_alive=int(KEEP_ALIVE_SECONDS),
            timeout_graceful_shutdown=CLOSE_SECONDS,
        )
        super().__init__(config)
        self._is_ending = asyncio.Event()

    def end(self) -> None:
        """Close the listener and its connections."""
        self.should_exit = True
        self._is_ending.set()

    async def main_loop(self) -> None:
        """Wait for the end. uvicorn would look for it ten times a second, each time waking an idle process."""
        await self._is_ending.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave the signals alone: the Observer ends by order."""
        yield


def connection_limit(num_files: int) -> int:
    """How many connections a listener takes in a process that may open `num_files`."""
    if num_files == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(1, min(MAX_CONNECTIONS, num_files // FILES_PER_CONNECTION))


def bind_tcp(host: str, port: int) -> socket.socket:
    """A listening socket at `host:port`, or at a free port where that one cannot be had. Raises ListenError."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    except OSError as error:
        raise ListenError(f"the inspector cannot listen at {host}: {error.strerror}") from None
    for candidate in dict.fromkeys((port, 0)):
        # asyncio switches Nagle's delay (40 ms an answer) off only where the protocol is named.
        sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, candidate))
            sock.listen(_BACKLOG)
            sock.setblocking(False)
        except OSError as error:
            sock.close()
            if candidate == 0 or error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise ListenError(f"the inspector cannot listen at {host}:{port}: {error.strerror}") from None
        else:
            return sock
    raise AssertionError("a free port is the last candidate")


def bind_unix(directory: Path) -> socket.socket:
    """A listening socket `observer.sock` in `directory`, 0600, in place of a dead Observer's. Raises OSError."""
    path = directory / SOCKET_NAME
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(path.lstat().st_mode):
            path.unlink()
    directory_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        # A socket's address holds 107 bytes, a path may be longer.
        sock.bind(f"/proc/self/fd/{directory_fd}/{SOCKET_NAME}")
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    finally:
        os.umask(before)
        os.close(directory_fd)
    return sock

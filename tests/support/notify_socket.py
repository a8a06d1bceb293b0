"""A service manager's end of sd_notify: a socket that keeps what it is told."""

import contextlib
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path


class NotifySocket:
    """What was told to `name`."""

    def __init__(self, name: str, listener: socket.socket) -> None:
        self.name = name
        self._listener = listener

    def received(self) -> list[str]:
        """All messages since the last call."""
        found = []
        with contextlib.suppress(BlockingIOError):
            while True:
                found.append(self._listener.recv(4096).decode())
        return found


@contextlib.contextmanager
def notify_socket(is_abstract: bool = False) -> Iterator[NotifySocket]:
    """A socket in the file system, or without a place there."""
    with (
        tempfile.TemporaryDirectory(prefix="vo-") as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener,
    ):
        path = str(Path(folder) / "notify")
        name = "@" + path if is_abstract else path
        listener.bind("\0" + path if is_abstract else path)
        listener.setblocking(False)
        yield NotifySocket(name, listener)

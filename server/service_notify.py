"""ServiceNotify: tells the service manager (systemd's sd_notify protocol) what the server is doing."""

import contextlib
import os
import socket
import time
from collections.abc import Mapping

_WATCHDOG_SHARE = 4
"""A sign of life is due four times as often as the manager asks for one, since one may be lost."""


class ServiceNotify:
    """Sends datagrams to the socket that the manager named in NOTIFY_SOCKET; without one it does nothing.

    It never waits: a manager that does not read misses something, the server does not. `sign_seconds` is the time
    from one sign of life to the next, 0 where the manager wants none.
    """

    def __init__(self, address: str = "", watchdog_seconds: float = 0.0) -> None:
        self.sign_seconds = watchdog_seconds / _WATCHDOG_SHARE
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._is_ready = False

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> "ServiceNotify":
        """As the manager's variables say."""
        address = environ.get("NOTIFY_SOCKET", "")
        if not address.startswith(("/", "@")):
            return cls()
        is_meant = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        microseconds = environ.get("WATCHDOG_USEC", "")
        return cls(address, int(microseconds) / 1e6 if is_meant and microseconds.isdecimal() else 0.0)

    @property
    def is_there(self) -> bool:
        """Whether a manager listens."""
        return bool(self._address)

    def ready(self) -> bool:
        """The start is over. False when that could not be told."""
        self._is_ready = self._tell("READY=1")
        return self._is_ready

    def stopping(self) -> None:
        """The server is about to end."""
        self._is_ready = False
        self._tell("STOPPING=1")

    def begin_reload(self) -> None:
        """Settings are being read again."""
        if self._is_ready:
            self._tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def end_reload(self) -> None:
        """They have been."""
        if self._is_ready:
            self.ready()

    def status(self, text: str) -> None:
        """One line for people."""
        self._tell(f"STATUS={text}")

    def alive(self) -> None:
        """A sign of life for the watchdog."""
        self._tell("WATCHDOG=1")

    def _tell(self, *lines: str) -> bool:
        if not self._address:
            return False
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto("\n".join(lines).encode(), self._address)
            return True
        return False


NO_SERVICE = ServiceNotify()

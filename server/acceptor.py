"""Acceptor: takes connections from the one listener, and hands each to the API server that has the fewest."""

import contextlib
import errno
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

logger = logging.getLogger(__name__)

BACKLOG = 2048
LATE_SECONDS = 0.5
"""A server that has not taken a connection for so long gets no more while another takes them."""
SILENT_SECONDS = 2.5
"""Nor does one that has not reported for so long: it does so every second, and does not only when it hangs."""
RETRY_SECONDS = 0.05
"""So long nothing is accepted when every server has its hands full, or this process has no file left."""
TOLD_SECONDS = 10.0
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@dataclass
class _Place:
    """One API server: our end of the pair its connections go through, and what is known of them."""

    handover: socket.socket
    has_started: bool = False
    num_handed: int = 0
    num_taken: int = 0
    num_connections: int = 0
    waits_since: float | None = None
    reported_at: float = field(default_factory=time.monotonic)

    def load(self, now: float) -> tuple[bool, bool, int]:
        """Sorts servers by whom the next connection goes to."""
        has_not_taken = self.waits_since is not None and now - self.waits_since > LATE_SECONDS
        is_late = has_not_taken or now - self.reported_at > SILENT_SECONDS
        return not self.has_started, is_late, self.num_connections + self.num_handed - self.num_taken

    def hand(self, connection: socket.socket) -> None:
        """Raises OSError: BlockingIOError while its hands are full, another when it is gone."""
        socket.send_fds(self.handover, [b"c"], [connection.fileno()])
        self.num_handed += 1
        if self.waits_since is None:
            self.waits_since = time.monotonic()

    def report(self, has_started: bool, num_taken: int, num_connections: int) -> None:
        """The server's own count."""
        self.has_started = has_started
        self.reported_at = time.monotonic()
        if num_taken != self.num_taken:
            self.waits_since = time.monotonic()
        self.num_taken, self.num_connections = num_taken, num_connections
        if num_taken >= self.num_handed:
            self.waits_since = None


class Acceptor:
    """Has a thread of its own, so that nothing the launcher does holds up a connection.

    One accepts for all: a server that is dead or hangs gets no connection while another is there, what waits in
    the backlog is nobody's yet, and it works the same over TCP and Unix-domain sockets. A connection that was
    handed over is the server's alone: it ends with it, and only it. `on_failure` is called from the thread.
    """

    def __init__(self, listener: socket.socket, on_failure: Callable[[str], None]) -> None:
        self._listener = listener
        self._on_failure = on_failure
        self._places: dict[int, _Place] = {}
        self._lock = threading.Lock()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.is_ending = False
        """Whether the servers are being ended: that none takes connections is no news then."""
        self._is_stopping = False
        self._told_at = 0.0
        self._thread = threading.Thread(target=self._run, name="acceptor", daemon=True)

    def open(self, client_index: int, handover: socket.socket) -> None:
        """That server takes connections from now on; the first lets the port listen. Closes `handover` itself."""
        handover.setblocking(False)
        with self._lock:
            self._places[client_index] = _Place(handover)
        if self._thread.ident is None:
            self._listener.setblocking(False)
            if self._listener.family != socket.AF_UNIX:
                self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.listen(BACKLOG)
            self._thread.start()
        self._ring()

    def report(self, client_index: int, has_started: bool, num_taken: int, num_connections: int) -> None:
        """How many connections a server has taken in all, and how many it has open.

        One that has not started yet, and would let no request in, gets none while there is another.
        """
        with self._lock:
            if (place := self._places.get(client_index)) is not None:
                place.report(has_started, num_taken, num_connections)

    def close_place(self, client_index: int) -> None:
        """That server is gone: what was on its way to it is closed."""
        with self._lock:
            place = self._places.pop(client_index, None)
        if place is not None:
            place.handover.close()

    def stop(self) -> None:
        """Accept no more. Idempotent."""
        self._is_stopping = True
        self._ring()
        if self._thread.ident is not None:
            self._thread.join()
        for client_index in list(self._places):
            self.close_place(client_index)

    def close(self) -> None:
        """`stop`, and give back the last file."""
        self.stop()
        if self._bell >= 0:
            os.close(self._bell)
            self._bell = -1

    def _ring(self) -> None:
        with contextlib.suppress(OSError):
            os.eventfd_write(self._bell, 1)

    def _run(self) -> None:
        try:
            while not self._is_stopping:
                self._turn()
        except Exception:
            logger.exception("the thread that accepts connections died")
            self._on_failure("the thread that accepts connections died")

    def _turn(self) -> None:
        """Wait until there is a connection and somebody to take it, and hand it over."""
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        if self._places:
            poll.register(self._listener, select.POLLIN)
        ready = {fd for fd, _ in poll.poll()}
        if self._bell in ready:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._bell)
        if self._listener.fileno() in ready and not self._is_stopping:
            self._accept()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            if error.errno in _NO_ROOM:
                self._tell_late("no connection can be accepted: %s", error.strerror)
                time.sleep(RETRY_SECONDS)
            return  # else it went away before it was accepted
        with connection:
            while not self._is_stopping and not self._hand(connection):
                if not self.is_ending:
                    self._tell_late("no API server takes connections; they wait")
                time.sleep(RETRY_SECONDS)

    def _hand(self, connection: socket.socket) -> bool:
        """Whether a server took it."""
        with self._lock:
            now = time.monotonic()
            for place in sorted(self._places.values(), key=lambda place: place.load(now)):
                with contextlib.suppress(OSError):
                    place.hand(connection)
                    return True
        return False

    def _tell_late(self, message: str, *arguments: object) -> None:
        now = time.monotonic()
        if not self._told_at or now - self._told_at > TOLD_SECONDS:
            self._told_at = now
            logger.warning(message, *arguments)

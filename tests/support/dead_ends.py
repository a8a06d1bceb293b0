"""Where telemetry can go and never come back: a receiver that answers nothing, a scraper that stops reading."""

import contextlib
import socket
import threading
from collections.abc import Iterator


class BlackHole:
    """Takes every connection and whatever comes over it, and says nothing."""

    def __init__(self, listener: socket.socket) -> None:
        self.num_connections = 0
        self._listener = listener
        self._taken: list[socket.socket] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._taken.append(self._listener.accept()[0])
                self.num_connections += 1

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(20)
        for taken in self._taken:
            taken.close()


@contextlib.contextmanager
def black_hole() -> Iterator[BlackHole]:
    """One at a loopback port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        hole = BlackHole(listener)
        try:
            yield hole
        finally:
            hole.close()


@contextlib.contextmanager
def stalled_scrapes(port: int, num_scrapes: int) -> Iterator[list[socket.socket]]:
    """So many scrapers that have read the first bytes of their answer, and read no further."""
    with contextlib.ExitStack() as stack:
        scrapers = []
        for _ in range(num_scrapes):
            scraper = stack.enter_context(socket.socket())
            scraper.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            scraper.settimeout(30)
            scraper.connect(("127.0.0.1", port))
            scraper.sendall(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert scraper.recv(64).startswith(b"HTTP/1.1 200")
            scrapers.append(scraper)
        yield scrapers

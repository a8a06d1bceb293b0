"""Connections to an OTLP receiver whose whole exchange has one deadline.

A socket's own timeout begins anew with every byte, so a receiver that drips them would hold an exporter for days.
"""

import http.client
import io
import socket
import ssl
import time
import urllib.request
from functools import partial
from typing import Any

LEAST_SECONDS = 0.001
"""A timeout of 0 would mean not to wait at all."""


class _Reply(http.client.HTTPResponse):
    """A reply that is read until `closes_at` (time.monotonic()); TimeoutError from then on."""

    def __init__(self, sock: socket.socket, *args: Any, closes_at: float, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp = io.BufferedReader(_BytesInTime(sock, self.fp.detach(), closes_at))


class _BytesInTime(io.RawIOBase):
    """What a socket's file gives, each read with no more time than is left."""

    def __init__(self, sock: socket.socket, file: Any, closes_at: float) -> None:
        self._sock = sock
        self._file = file
        self._closes_at = closes_at

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """The next bytes. TimeoutError where they do not come in time."""
        seconds = self._closes_at - time.monotonic()
        if seconds <= 0:
            raise TimeoutError("the reply took too long")
        self._sock.settimeout(seconds)
        num_bytes: int | None = self._file.readinto(buffer)
        return num_bytes

    def close(self) -> None:
        """Let go of the socket."""
        self._file.close()
        super().close()


class _InTime(http.client.HTTPConnection):
    """A connection that is used once; its `timeout` is of all that is done with it."""

    def __init__(self, host: str, **options: Any) -> None:
        super().__init__(host, **options)
        self._closes_at = time.monotonic() + (self.timeout or 0.0)
        self.response_class = partial(_Reply, closes_at=self._closes_at)  # type: ignore[assignment]

    def connect(self) -> None:
        """Connect, and have what is left of the time for what is sent."""
        super().connect()
        self.sock.settimeout(max(LEAST_SECONDS, self._closes_at - time.monotonic()))


class _SecureInTime(_InTime, http.client.HTTPSConnection):
    """The same by TLS."""


class HttpInTime(urllib.request.HTTPHandler):
    """Opens http URLs in the time given."""

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """One exchange."""
        return self.do_open(_InTime, req)


class HttpsInTime(urllib.request.HTTPSHandler):
    """Opens https URLs in the time given."""

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__(context=context)
        self._tls_context = context

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """One exchange."""
        return self.do_open(_SecureInTime, req, context=self._tls_context)

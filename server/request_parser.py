"""The parser of a connection's requests: a wish to upgrade is ignored, and the request is read like any other."""

from typing import Any

import httptools

from vllm_obs.server.config import Limits
from vllm_obs.server.errors import ApiError

FRAMING_HEADERS = (b"content-length", b"transfer-encoding")
VERSIONS = ("1.1", "1.0")


class RequestParser:
    """httptools' parser, without its upgrades.

    It ends a message that asks for another protocol (`Upgrade: h2c`, which some clients send with every request)
    at its head. A server that speaks no other answers it over HTTP/1.1, for which it needs the body. So the body
    is read by a second parser, which has been told how the body is framed.
    """

    def __init__(self, protocol: Any) -> None:
        self._protocol = protocol
        self._parser = _parser(protocol)

    def feed_data(self, data: bytes) -> None:
        """Parse, calling the protocol; httptools.HttpParserError for what is not HTTP."""
        rest: bytes | memoryview = data
        while True:
            try:
                self._parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as upgrade:
                rest = memoryview(rest)[upgrade.args[0] :]
                self._parser = _parser(_AfterHead(self._protocol))
                self._parser.feed_data(self._head())

    def is_at_upgrade(self) -> bool:
        """Whether the message is said to be complete only because it asks for another protocol."""
        return bool(self._parser.should_upgrade())

    def should_upgrade(self) -> bool:
        """Never."""
        return False

    def should_keep_alive(self) -> bool:
        """Whether the client wants the connection kept."""
        return bool(self._parser.should_keep_alive())

    def get_method(self) -> bytes:
        """Of the message whose head was read last."""
        method: bytes = self._parser.get_method()
        return method

    def get_http_version(self) -> str:
        """Of the message whose head was read last."""
        version: str = self._parser.get_http_version()
        return version

    def _head(self) -> bytes:
        framing = [name + b": " + value for name, value in self._protocol.headers if name in FRAMING_HEADERS]
        return b"\r\n".join([b"POST / HTTP/1.1", *framing, b"", b""])


def version_fault(version: str) -> ApiError | None:
    """The reply to a version whose rules are not HTTP/1's, however much like it the head looks."""
    if version in VERSIONS:
        return None
    message = f"HTTP/{version} is not spoken here; HTTP/1.1 and HTTP/1.0 are"
    return ApiError(message, "invalid_http", status=505, closes=True)


def ambiguity(headers: list[tuple[bytes, bytes]], version: str) -> str:
    """What another server on the way may have read differently; "" where there is nothing of the kind."""
    num_hosts = sum(name == b"host" for name, _ in headers)
    if num_hosts > 1:
        return "there are several Host headers"
    if not num_hosts and version == "1.1":
        return "there is no Host header, which HTTP/1.1 demands"
    if any(name == b"transfer-encoding" and value.strip().lower() != b"chunked" for name, value in headers):
        return "a transfer encoding other than chunked is not supported"
    return ""


def too_large(limits: Limits, url: bytes) -> ApiError:
    """The reply to a head, or to trailers, beyond the limits; `url` is what was read of the target."""
    if len(url) > limits.max_url_bytes:
        message = f"the request target is longer than {limits.max_url_bytes} bytes"
        return ApiError(message, "too_large", status=414, closes=True)
    message = f"the headers are over {limits.max_head_bytes} bytes or {limits.max_num_headers} fields"
    return ApiError(message, "too_large", status=431, closes=True)


class _AfterHead:
    """Passes a parser's calls on to the protocol from the first body on: the head before it was told already."""

    def __init__(self, protocol: Any) -> None:
        self._protocol = protocol
        self._is_told = True
        self.on_body = protocol.on_body
        self.on_message_complete = protocol.on_message_complete

    def on_message_begin(self) -> None:
        if not self._is_told:
            self._protocol.on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._is_told:
            self._protocol.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_told:
            self._protocol.on_header(name, value)

    def on_headers_complete(self) -> None:
        if not self._is_told:
            self._protocol.on_headers_complete()
        self._is_told = False


def _parser(target: Any) -> Any:
    parser = httptools.HttpRequestParser(target)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser

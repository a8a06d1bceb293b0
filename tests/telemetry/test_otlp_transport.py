"""Receivers that do not speak HTTP, or answer a byte at a time."""

import contextlib
import socket
import threading
import time

import pytest

from vllm_obs.telemetry.otlp_settings import HTTP, OtlpSettings
from vllm_obs.telemetry.otlp_transport import MAX_TOLD_CHARS, HttpTransport


def test_what_a_receiver_sends_instead_of_http_is_told_in_one_short_printable_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"\x1b[2Jgone\r12:00:00 ERROR forged" + b"a" * 9000 + b"\n")

        receiver = threading.Thread(target=answer, daemon=True)
        receiver.start()
        port = listener.getsockname()[1]
        transport = HttpTransport(OtlpSettings(endpoint=f"http://127.0.0.1:{port}/v1/traces", protocol=HTTP))
        reason = transport.send(b"spans", 9.0).reason
        receiver.join(9.0)
    assert reason.isprintable()
    assert "gone" in reason
    assert len(reason) < MAX_TOLD_CHARS + 50


@pytest.mark.parametrize(
    ("head", "drop"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n", b"x"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n", b"a: b\r\n"),
        (b"HTTP/1.1 200 OK\r\na: ", b"x"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    ],
    ids=["body", "trailers", "head", "interim replies"],
)
def test_a_receiver_that_drips_its_reply_is_given_up_in_time(head: bytes, drop: bytes) -> None:
    is_over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(ConnectionError):
                connection.recv(65536)
                connection.sendall(head)
                while not is_over.wait(0.05):
                    connection.sendall(drop)

        receiver = threading.Thread(target=drip, daemon=True)
        receiver.start()
        port = listener.getsockname()[1]
        transport = HttpTransport(OtlpSettings(endpoint=f"http://127.0.0.1:{port}/v1/traces", protocol=HTTP))
        begun_at = time.monotonic()
        delivery = transport.send(b"spans", 0.5)
        took = time.monotonic() - begun_at
        is_over.set()
        receiver.join(9.0)
    assert delivery.can_retry
    assert delivery.reason.startswith("TimeoutError")
    assert 0.5 <= took < 3 * 0.5

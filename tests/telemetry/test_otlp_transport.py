"""What the log is told of a receiver that does not speak HTTP."""

import socket
import threading

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

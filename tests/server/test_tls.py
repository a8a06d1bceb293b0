"""A port that speaks TLS, with a certificate made for the test."""

import http.client
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
from http_app import socket_server

from vllm_obs.cli.server_flags import server_config_from
from vllm_obs.engine.errors import ConfigError
from vllm_obs.server.config import ServerConfig
from vllm_obs.server.tls import check_tls

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """(certificate, key) of 127.0.0.1, signed by itself."""
    directory = tmp_path_factory.mktemp("tls")
    paths = str(directory / "cert.pem"), str(directory / "key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    about = ["-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, *about, "-out", paths[0], "-keyout", paths[1]], check=True, capture_output=True)
    return paths


def ask(port: int, context: ssl.SSLContext, stream: bool = False) -> tuple[int, str]:
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=context)
    try:
        body = b'{"prompt": "Hi", "max_tokens": 3, "stream": %s}' % (b"true" if stream else b"false")
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        return reply.status, reply.read().decode()
    finally:
        connection.close()


@needs_openssl
def test_requests_and_streams_are_answered_over_tls_and_not_without(certificate: tuple[str, str]) -> None:
    server = ServerConfig(ssl_certfile=certificate[0], ssl_keyfile=certificate[1])
    check_tls(server)
    assert server.scheme == "https"
    with socket_server(server=server) as running:
        trusting = ssl.create_default_context(cafile=certificate[0])
        status, body = ask(running.port, trusting)
        assert (status, "..." in body) == (200, True)
        assert ask(running.port, trusting, stream=True)[1].endswith("data: [DONE]\n\n")
        with pytest.raises(ssl.SSLCertVerificationError):
            ask(running.port, ssl.create_default_context())
        with running.connect() as plain:
            plain.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert not plain.recv(100).startswith(b"HTTP")


@needs_openssl
def test_clients_show_a_certificate_where_they_must(certificate: tuple[str, str]) -> None:
    server = ServerConfig(
        ssl_certfile=certificate[0], ssl_keyfile=certificate[1], ssl_ca_certs=certificate[0], ssl_cert_reqs=2
    )
    check_tls(server)
    with socket_server(server=server) as running:
        known = ssl.create_default_context(cafile=certificate[0])
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
            ask(running.port, known)
        known.load_cert_chain(*certificate)
        assert ask(running.port, known)[0] == 200


@needs_openssl
def test_key_of_another_certificate_is_refused_before_the_start(
    certificate: tuple[str, str], tmp_path: Path
) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("no certificate")
    for server in (
        ServerConfig(ssl_certfile=str(broken), ssl_keyfile=certificate[1]),
        ServerConfig(ssl_certfile=certificate[0], ssl_keyfile=str(broken)),
        ServerConfig(ssl_certfile=certificate[0], ssl_keyfile=certificate[1], ssl_ca_certs=str(broken)),
    ):
        with pytest.raises(ConfigError, match=r"^--ssl-") as caught:
            check_tls(server)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"ssl_certfile": "/nowhere/cert.pem"}, "--ssl-certfile, --ssl-keyfile: No such file or directory"),
        ({"ssl_keyfile": "/nowhere/key.pem"}, "--ssl-keyfile and --ssl-ca-certs need --ssl-certfile"),
        ({"ssl_cert_reqs": 3}, "--ssl-cert-reqs 3 is not 0, 1 or 2"),
        ({"ssl_cert_reqs": 2}, "--ssl-cert-reqs needs --ssl-ca-certs"),
        ({"max_log_len": -1}, "--max-log-len -1 is below 0"),
    ],
)
def test_flags_that_cannot_work_are_one_line(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        server_config_from(values, {})
    assert str(caught.value) == message

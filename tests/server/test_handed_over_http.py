"""Connections that somebody else accepted are served as the server's own, over TLS as well."""

import asyncio
import http.client
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from starlette.types import Receive, Scope, Send

from vllm_obs.server.config import ServerConfig
from vllm_obs.server.http_server import HttpServer

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Says on which scheme it was asked."""
    body = scope["scheme"].encode()
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def handed(server: ServerConfig, ask: Callable[[int], Any], num_connections: int = 1) -> Any:
    """What `ask(port)` gave in a thread, of a server that listens nowhere and is handed so many connections."""

    async def run() -> Any:
        http_server = HttpServer(app, server)
        serving = await http_server.start_without_listener()
        loop = asyncio.get_running_loop()
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            listener.setblocking(False)
            asking = loop.run_in_executor(None, ask, listener.getsockname()[1])
            for _ in range(num_connections):
                connection, _ = await loop.sock_accept(listener)
                http_server.take(connection)
            result = await asking
        http_server.stop(at_once=True)
        await serving
        return result

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


def get(connection: http.client.HTTPConnection) -> tuple[int, bytes]:
    connection.request("GET", "/")
    response = connection.getresponse()
    return response.status, response.read()


def test_a_handed_connection_is_kept_alive_and_answered() -> None:
    def ask(port: int) -> list[tuple[int, bytes]]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        try:
            return [get(connection), get(connection)]
        finally:
            connection.close()

    assert handed(ServerConfig(), ask) == [(200, b"http")] * 2


def test_a_connection_that_is_gone_already_harms_nobody() -> None:
    def ask(port: int) -> tuple[int, bytes]:
        socket.create_connection(("127.0.0.1", port)).close()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        try:
            return get(connection)
        finally:
            connection.close()

    assert handed(ServerConfig(), ask, num_connections=2) == (200, b"http")


@needs_openssl
def test_over_tls_and_not_without(tmp_path: Path) -> None:
    certificate, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    about = ["-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, *about, "-out", certificate, "-keyout", key], check=True, capture_output=True)

    def ask(port: int) -> tuple[int, bytes]:
        with socket.create_connection(("127.0.0.1", port), timeout=20) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert not plain.recv(100).startswith(b"HTTP")
        context = ssl.create_default_context(cafile=certificate)
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=context)
        try:
            return get(connection)
        finally:
            connection.close()

    server = ServerConfig(ssl_certfile=certificate, ssl_keyfile=key)
    assert handed(server, ask, num_connections=2) == (200, b"https")

"""What a server that is started with a key opens: one public port, and behind it nothing without the key."""

import asyncio
import http.client
import os
import re
import socket
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from fake_engine import FakeEngine
from http_app import Served, served
from serving import Server, serving
from starlette.routing import BaseRoute, Mount

from vllm_obs.server.config import ServerConfig
from vllm_obs.server.public_paths import PUBLIC

KEY = "s3cret-of-the-test"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "BREW")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A start with nothing but a key, over a model that needs no time."""
    file = tmp_path_factory.mktemp("keys") / "keys"
    file.write_text(KEY + "\n")
    file.chmod(0o600)
    with serving("--api-key-file", str(file)) as running:
        running.wait_observed()
        yield running


def tree(server: Server) -> list[psutil.Process]:
    root = psutil.Process(server.process.pid)
    return [root, *root.children(recursive=True)]


def test_one_port_is_public_and_the_others_are_loopback(server: Server) -> None:
    addresses = [
        (connection.laddr.ip, connection.laddr.port, connection.type)
        for process in tree(server)
        for connection in process.net_connections("inet")
        if connection.status in (psutil.CONN_LISTEN, psutil.CONN_NONE)
    ]
    public = [(port, kind) for ip, port, kind in addresses if ip not in ("127.0.0.1", "::1")]
    assert public == [(server.port, socket.SOCK_STREAM)]
    assert {f"{ip}:{port}" for ip, port, _ in addresses if ip == "127.0.0.1"} == {server.inspector}


def test_from_outside_only_that_port_answers(server: Server) -> None:
    """Every port that any process of this machine listens at, asked at an address that is not loopback."""
    ips = [a.address for each in psutil.net_if_addrs().values() for a in each if a.family == socket.AF_INET]
    outside = next((ip for ip in ips if not ip.startswith("127.")), None)
    if outside is None:
        pytest.skip("this machine has no address but loopback")
    ours = {c.laddr.port for process in tree(server) for c in process.net_connections("inet")}
    answering = []
    for port in ours:
        with socket.socket() as probe:
            probe.settimeout(5)
            if probe.connect_ex((outside, port)) == 0:
                answering.append(port)
    assert answering == [server.port]


def test_unix_sockets_lie_in_directories_of_ours_alone(server: Server) -> None:
    inodes = {inode for process in tree(server) for inode in socket_inodes(process.pid)}
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    paths = {Path(row[7]) for row in rows if len(row) > 7 and row[6] in inodes}
    assert "observer.sock" in {path.name for path in paths}
    for path in paths:
        assert path.is_absolute(), f"{path} is abstract: everybody may connect"
        if path.exists():  # the engine's own have no name any more
            folder = path.resolve().parent.stat()
            assert (folder.st_uid, stat.S_IMODE(folder.st_mode)) == (os.getuid(), 0o700), path
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def socket_inodes(pid: int) -> Iterator[str]:
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(fd.readlink())
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            yield target[8:-1]


def status(server: Server, method: str, path: str, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        connection.request(method, path, headers=headers or {})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def test_every_documented_path_is_closed_to_every_method(server: Server) -> None:
    import json

    found, document = status(server, "GET", "/openapi.json", {"Authorization": f"Bearer {KEY}"})
    assert found == 200
    paths = [re.sub(r"\{[^}]+\}", "x", path) for path in json.loads(document)["paths"]]
    assert len(paths) > 20
    for path in [*paths, "/openapi.json", "/docs", "/redoc", "/", "/inspect/state", "/profile", "/v1/nothing"]:
        for method in METHODS:
            found, body = status(server, method, path)
            if path in PUBLIC:
                assert found in (200, 405, 400, 501), (method, path, found)
            else:
                assert found in (401, 400, 501), (method, path, found)
                assert found == 401 or method in ("CONNECT", "BREW"), (method, path, found)
                assert method == "HEAD" or found != 401 or b"unauthorized" in body
            assert KEY.encode() not in body


def test_every_route_of_the_application_is_closed_whatever_it_is() -> None:
    """Documented or not, mounted or not, for every method, and for connections that are not HTTP."""

    async def walk(app: Served) -> None:
        paths = sorted(set(all_paths(app.app.routes)))
        assert len(paths) > 25
        for path in (re.sub(r"\{[^}]+\}", "x", path) for path in paths):
            for method in METHODS:
                reply = await app.client.request(method, path)
                assert (reply.status_code == 401) != (path in PUBLIC), (method, path, reply.status_code)
            assert await websocket_reply(app, path) in ("websocket.close", "websocket.http.response.start"), path

    async def main() -> None:
        async with served(FakeEngine(lambda request: [30] * 4), ServerConfig(api_keys=(KEY,))) as app:
            await walk(app)

    asyncio.run(main())


def all_paths(routes: Sequence[BaseRoute], prefix: str = "") -> Iterator[str]:
    """The path of every route, those of included routers and mounted applications among them."""
    for route in routes:
        path = prefix + str(getattr(route, "path", ""))
        inner = getattr(route, "original_router", route)
        if isinstance(route, Mount):
            yield f"{path}/anything"
        if hasattr(inner, "routes"):
            yield from all_paths(inner.routes, path)
        else:
            yield path


async def websocket_reply(app: Served, path: str) -> str:
    """The first that is sent to who wants a WebSocket (uvicorn is told to speak none)."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "websocket", "path": path, "raw_path": path.encode(), "root_path": "", "scheme": "ws",
        "query_string": b"", "headers": [], "subprotocols": [], "state": {}, "asgi": {"version": "3.0"},
    }  # fmt: skip
    await app.app(scope, receive, send)
    return str(sent[0]["type"])

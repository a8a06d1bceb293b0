"""A real Observer process over a run directory, and questions to its two listeners."""

import http.client
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from vllm_obs.engine.child import Child, spawn
from vllm_obs.engine.child_pipe import READY

START_SECONDS = 60.0


class Reply(NamedTuple):
    """What a listener answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, decoded."""
        return json.loads(self.body)


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket, whose path may be longer than an address holds."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=30)
        self._path = path

    def connect(self) -> None:
        directory_fd = os.open(self._path.parent, os.O_RDONLY)
        try:
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(30)
            self.sock.connect(f"/proc/self/fd/{directory_fd}/{self._path.name}")
        finally:
            os.close(directory_fd)


class ObserverChild:
    """The process and where it listens."""

    def __init__(self, child: Child, run_dir: Path) -> None:
        self.child = child
        self.run_dir = run_dir
        ready = child.wait_for(READY, START_SECONDS)
        self.host, self.port = ready["inspect_host"], ready["inspect_port"]

    @property
    def url(self) -> str:
        """Where people ask."""
        return f"http://{self.host}:{self.port}"

    def ask(
        self, path: str, method: str = "GET", headers: dict[str, str] | None = None, body: Any = None
    ) -> Reply:
        """One request over TCP."""
        return _ask(http.client.HTTPConnection(self.host, self.port, timeout=30), method, path, headers, body)

    def ask_unix(self, path: str, headers: dict[str, str] | None = None) -> Reply:
        """One request over the Unix socket."""
        return _ask(UnixConnection(self.run_dir / "observer.sock"), "GET", path, headers, None)

    def get(self, path: str) -> Any:
        """The JSON at a path that has to be there."""
        reply = self.ask(path)
        assert reply.status == 200, reply.body
        return reply.json


@contextmanager
def observer_over(run_dir: Path, **configuration: Any) -> Iterator[ObserverChild]:
    """An Observer over a run directory; ended, by force if it must be, at the end."""
    values = {"run_dir": str(run_dir), "inspect_host": "127.0.0.1", "inspect_port": 0, **configuration}
    child = spawn("vllm_obs.telemetry.observer_main", "Observer", values)
    try:
        yield ObserverChild(child, run_dir)
    finally:
        child.stop()


def _ask(
    connection: http.client.HTTPConnection, method: str, path: str, headers: dict[str, str] | None, body: Any
) -> Reply:
    try:
        content = None if body is None else json.dumps(body).encode()
        kind = {} if body is None else {"content-type": "application/json"}
        connection.request(method, path, content, {**kind, **(headers or {})})
        reply = connection.getresponse()
        return Reply(reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read())
    finally:
        connection.close()

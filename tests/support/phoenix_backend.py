"""A real Arize Phoenix from a virtual environment of its own, asked for the spans that it has stored."""

import contextlib
import json
import os
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ends_with_pytest import ends_with_pytest
from serving import free_port

VARIABLE = "VLLM_OBS_TEST_PHOENIX"
PYTHON = Path(os.environ.get(VARIABLE, "/nonexistent")) / "bin" / "python"
START_SECONDS = 180.0


class Phoenix(NamedTuple):
    """Where it listens, by protocol."""

    http_port: int
    grpc_port: int

    def spans(self) -> list[dict[str, Any]]:
        """Every stored span, in the order of their beginnings."""
        found: list[dict[str, Any]] = []
        cursor = ""
        while True:
            page = self._get(f"v1/projects/default/spans?limit=1000{cursor}")
            found += page["data"]
            if not page["next_cursor"]:
                return sorted(found, key=lambda span: str(span["start_time"]))
            cursor = f"&cursor={page['next_cursor']}"

    def is_ready(self) -> bool:
        """Whether it answers, with a project to look into or without."""
        with contextlib.suppress(OSError):
            self._get("v1/projects")
            return True
        return False

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/{path}", timeout=20) as answer:
            return json.loads(answer.read())


@contextlib.contextmanager
def phoenix() -> Iterator[Phoenix]:
    """A Phoenix with an empty store; its start takes half a minute."""
    backend = Phoenix(free_port(), free_port())
    with tempfile.TemporaryDirectory(prefix="phoenix-") as directory:
        env = {
            **os.environ,
            "PHOENIX_WORKING_DIR": directory,
            "PHOENIX_HOST": "127.0.0.1",
            "PHOENIX_PORT": str(backend.http_port),
            "PHOENIX_GRPC_PORT": str(backend.grpc_port),
            "PHOENIX_TELEMETRY_ENABLED": "false",
        }
        with (Path(directory) / "log").open("wb") as log:
            command = [str(PYTHON), "-m", "phoenix.server.main", "serve"]
            process = ends_with_pytest(
                subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env)
            )
        try:
            deadline = time.monotonic() + START_SECONDS
            while not backend.is_ready():
                assert process.poll() is None, (Path(directory) / "log").read_text()[-4000:]
                assert time.monotonic() < deadline, "Phoenix did not become ready"
                time.sleep(0.5)
            yield backend
        finally:
            process.terminate()
            process.wait(30)

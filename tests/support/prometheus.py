"""A real Prometheus that scrapes one server, asked over its own API."""

import contextlib
import json
import shutil
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ends_with_pytest import ends_with_pytest
from serving import free_port

COMMAND = shutil.which("prometheus")
REASON = "Debian's package `prometheus` is not installed"
CONFIG = """
global: {{scrape_interval: 3s, scrape_timeout: 3s}}
scrape_configs: [{{job_name: vllm, static_configs: [{{targets: ["127.0.0.1:{port}"]}}]}}]
"""


class Prometheus:
    """One running Prometheus."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1/"

    def get(self, path: str, **parameters: str) -> Any:
        """The `data` of an answer of its API."""
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self._url}{path}?{query}", timeout=20) as answer:
            return json.loads(answer.read())["data"]

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of every sample that an expression gives now."""
        result = self.get("query", query=expression)["result"]
        return [(sample["metric"], float(sample["value"][1])) for sample in result]

    def await_scrape(self, seconds: float = 30.0) -> None:
        """Return after a scrape that began after this call has been stored."""
        begun = time.time()
        deadline = time.monotonic() + seconds
        while not any(value >= begun for _, value in self.query("timestamp(up == 1)")):
            assert time.monotonic() < deadline, self.get("targets")
            time.sleep(0.1)


@contextlib.contextmanager
def prometheus(target_port: int) -> Iterator[Prometheus]:
    """A Prometheus that scrapes that port every three seconds: three times what a scrape may take."""
    with tempfile.TemporaryDirectory(prefix="prometheus-") as directory:
        config = Path(directory) / "prometheus.yml"
        config.write_text(CONFIG.format(port=target_port))
        with started(config) as running:
            yield running


@contextlib.contextmanager
def started(config: Path, *flags: str) -> Iterator[Prometheus]:
    """A Prometheus with that configuration; its data and its log lie beside the file."""
    assert COMMAND is not None, REASON
    port = free_port()
    given = [f"--web.listen-address=127.0.0.1:{port}", f"--storage.tsdb.path={config.parent}/data", *flags]
    with (config.parent / "log").open("wb") as log:
        process = ends_with_pytest(
            subprocess.Popen(
                [COMMAND, f"--config.file={config}", *given], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        )
    try:
        _await_ready(port, process)
        yield Prometheus(port)
    finally:
        process.terminate()
        process.wait(20)


def _await_ready(port: int, process: "subprocess.Popen[bytes]", seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=5) as answer,
        ):
            if answer.status == 200:
                return
        time.sleep(0.1)
    raise AssertionError("Prometheus did not become ready")

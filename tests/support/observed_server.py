"""A real server of a tiny random model, quick to start and to step, and what its Observer says of it over HTTP."""

import contextlib
import http.client
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from prometheus_client.parser import text_string_to_metric_families
from serving import Server, serving
from tiny_models import TINY_CONFIG, write_model

from vllm_obs.engine.model.source import resolve_model

VOCAB = 49_152
MAX_MODEL_LEN = 2048
NAME = "tiny"

Samples = dict[str, list[tuple[dict[str, str], float]]]


def tiny_model(directory: Path) -> list[str]:
    """Flags that serve a random model of two small layers with the default model's tokenizer."""
    sizes = {"vocab_size": VOCAB, "max_position_embeddings": MAX_MODEL_LEN, "num_hidden_layers": 2}
    write_model(directory, TINY_CONFIG | sizes)
    source = resolve_model(None)
    return [str(directory), "--tokenizer", source.path, "--served-model-name", NAME, "--dtype", "float32"]


NO_MODEL = (
    *("--load-format", "synthetic", "--served-model-name", NAME, "--max-model-len", str(MAX_MODEL_LEN)),
    *("--model-loader-extra-config", '{"base_seconds": 0.004, "num_layers": 2}'),
)
"""Flags that serve filler at the pace of the tiny model: without torch the server is there in a second."""


class ObservedServer:
    """A ready server, its metrics and its inspector. Making one waits for its Observer."""

    def __init__(self, server: Server) -> None:
        server.wait_observed()
        self.server = server
        self.port = server.port
        self._inspector: http.client.HTTPConnection | None = None

    def close(self) -> None:
        """Let go of the connection to the inspector."""
        if self._inspector is not None:
            self._inspector.close()

    def complete(self, label: str = "", **body: Any) -> dict[str, Any]:
        """The reply to a completion that succeeds."""
        connection = self.server.connect()
        headers = {"Content-Type": "application/json"} | ({"X-Request-Id": label} if label else {})
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            response = connection.getresponse()
            reply = json.loads(response.read())
        finally:
            connection.close()
        assert response.status == 200, reply
        return dict(reply)

    def exposition(self) -> str:
        """What a scrape is answered."""
        return self.server.exposition()

    def samples(self) -> Samples:
        """All samples of a scrape by their name."""
        found: Samples = {}
        for family in text_string_to_metric_families(self.exposition()):
            for sample in family.samples:
                found.setdefault(sample.name, []).append((sample.labels, sample.value))
        return found

    def inspect(self, path: str) -> Any:
        """The inspector's answer to `GET /inspect/PATH`."""
        try:
            status, body = self._ask(path)
        except http.client.RemoteDisconnected:
            status, body = self._ask(path)  # it closes connections that nobody used for a while
        assert status == 200, (path, status, body)
        return json.loads(body)

    def _ask(self, path: str) -> tuple[int, bytes]:
        if self._inspector is None:
            self._inspector = http.client.HTTPConnection(self.server.inspector, timeout=60)
        self._inspector.request("GET", f"/inspect/{path}")
        response = self._inspector.getresponse()
        return response.status, response.read()

    def request(self, name: str) -> dict[str, Any]:
        """Everything about one request."""
        return dict(self.inspect(f"requests/{quote(name)}"))

    def broken_laws(self) -> list[dict[str, Any]]:
        """The conservation laws that do not hold."""
        return [law for law in self.inspect("invariants")["laws"] if law["num_broken"]]


def total(samples: Samples, name: str, **labels: str) -> float:
    """The sum of all samples of that name with these labels; the name must be there."""
    return sum(value for found, value in samples[name] if labels.items() <= found.items())


def await_that(is_so: Callable[[], Any], seconds: float = 20.0) -> Any:
    """Ask until the answer is true, and give it."""
    deadline = time.monotonic() + seconds
    while not (answer := is_so()):
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.05)
    return answer


def watched(server: Server) -> contextlib.closing[ObservedServer]:
    """Its Observer, for the length of a `with` block."""
    return contextlib.closing(ObservedServer(server))


@contextlib.contextmanager
def observed(directory: Path, *args: str, env: dict[str, str] | None = None) -> Iterator[ObservedServer]:
    """A ready server of the tiny model, written to `directory`, whose inspector answers."""
    with serving(*tiny_model(directory), *args, env=env) as server, watched(server) as running:
        yield running


@contextlib.contextmanager
def synthetic(*args: str, env: dict[str, str] | None = None) -> Iterator[ObservedServer]:
    """The same without a model, for what does not depend on tokens and their cost."""
    with serving(*NO_MODEL, *args, env=env) as server, watched(server) as running:
        yield running

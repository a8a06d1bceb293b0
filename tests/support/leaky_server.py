"""A server with everything on that is told secrets, and all that it says, sends and leaves meanwhile."""

import contextlib
import http.client
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from notify_socket import NotifySocket, notify_socket
from observed_server import NAME, await_that, tiny_model
from otlp_receiver import OtlpReceiver, http_receiver
from serving import Server

KEYS = ("canarykeyone4711", "canarykeytwo4711")
WRONG_KEY = "canarywrongkey4711"
PROMPT = "canaryprompt4711"
TARGET = "canarytarget4711"
FOLDER = "canaryfolder4711"
HIDDEN = (*KEYS, WRONG_KEY, PROMPT, TARGET)
CHAT = [{"role": "system", "content": f"Be {PROMPT}."}, {"role": "user", "content": f"Sing of {PROMPT}!"}]
LONG = {"prompt": f"The {PROMPT} sings", "max_tokens": 1500, "ignore_eos": True, "stream": True, "model": NAME}
TOOL = {"type": "function", "function": {"name": "f", "description": PROMPT, "parameters": {"type": "object"}}}
GOOD: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": PROMPT, "max_tokens": 3, "stop": [PROMPT], "user": PROMPT}),
    ("/v1/completions", {"prompt": [PROMPT, PROMPT], "max_tokens": 2, "n": 2, "cache_salt": PROMPT}),
    ("/v1/completions", {"prompt": PROMPT, "max_tokens": 2, "stream": True, "logprobs": 1, "echo": True}),
    ("/v1/completions", {"prompt": PROMPT, "max_tokens": 4, "structured_outputs": {"regex": f"({PROMPT})?a"}}),
    ("/v1/chat/completions", {"messages": CHAT, "max_tokens": 3, "tools": [TOOL], "tool_choice": "none"}),
    ("/v1/responses", {"input": PROMPT, "max_output_tokens": 3, "metadata": {"who": PROMPT}}),
    ("/v1/messages", {"messages": CHAT[1:], "max_tokens": 3}),
    ("/tokenize", {"prompt": PROMPT}),
]
BAD: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": PROMPT, "max_tokens": -1}),
    ("/v1/completions", {"prompt": PROMPT * 4000, "max_tokens": 1}),
    ("/v1/chat/completions", {"messages": CHAT, "tool_choice": "none", "temperature": 9}),
    ("/v1/completions", {"prompt": "a", "structured_outputs": {"json": {"$ref": f"#/{'x' * 64}{PROMPT}"}}}),
]
WHILE_TWO_RUN = "GET /inspect/state while two run"
"""They may have ended when all has been looked at."""
INSPECTED = re.compile(r"\{(\w+)(?::path)?\}")


class Leaky:
    """A server with everything on, what it was asked, and what it answered."""

    def __init__(self, server: Server, receiver: OtlpReceiver, base: Path) -> None:
        self.server = server
        self.receiver = receiver
        self.base = base
        self.refusals: list[str] = []
        """The heads and bodies of all replies that were errors."""
        self.heads: list[str] = []
        self.told: list[str] = []
        """What the service manager was told."""
        self.num_cached: list[int] = []
        """Of one prompt's tokens, by the second key and then twice by the first."""
        self.core_limits: dict[str, int] = {}
        """How large a core file may be that each process leaves."""
        self.looks: dict[str, bytes] = {}
        """What the inspector and /metrics answered, by what they were asked."""

    def ask(self, method: str, path: str, body: Any = None, key: str = KEYS[0], **headers: str) -> int:
        """The status of one exchange, of which is kept what no secret may be in."""
        return self.exchange(method, path, body, key, **headers)[0]

    def exchange(
        self, method: str, path: str, body: Any = None, key: str = KEYS[0], **headers: str
    ) -> tuple[int, str]:
        """Likewise, with its body."""
        connection = self.server.connect()
        try:
            sent = {"Authorization": f"Bearer {key}", "Content-Type": "application/json", **headers}
            connection.request(method, path, None if body is None else json.dumps(body), sent)
            response = connection.getresponse()
            text, head = response.read().decode(), str(response.headers)
        finally:
            connection.close()
        self.heads.append(head)
        if response.status >= 400:
            self.refusals.append(head + text)
        return response.status, text

    @property
    def inspector(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.server.inspector, timeout=60)

    def look(self, method: str, path: str, body: str | None = None) -> bytes:
        """What the inspector answers; of an endless stream its first bytes."""
        connection = self.inspector
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            is_endless = "event-stream" in response.headers.get("content-type", "")
            self.looks[f"{method} {path}"] = told = response.read1(4096) if is_endless else response.read()
        finally:
            connection.close()
        return told


@contextlib.contextmanager
def leaky_server() -> Iterator[Leaky]:
    """It was asked all sorts of things and looked at from all sides, its engine was killed, and it has ended."""
    base = Path(tempfile.mkdtemp(prefix="vo-", dir="/tmp"))
    try:
        with http_receiver() as receiver, notify_socket() as manager:
            yield from _played(base, receiver, manager)
    finally:
        shutil.rmtree(base, ignore_errors=True)


def _played(base: Path, receiver: OtlpReceiver, manager: NotifySocket) -> Iterator[Leaky]:
    model = tiny_model(base / FOLDER)
    (base / "keys").write_text(f"team\t{KEYS[1]}\n")
    for name in ("runs", "cache", "tmp"):
        (base / name).mkdir()
    flags = ["--api-key", KEYS[0], "--api-key-file", str(base / "keys"), "--enable-log-requests"]
    flags += ["--uvicorn-log-level", "trace", "--enable-prompt-tokens-details"]
    variables = {
        "VLLM_OBS_RUN_DIR": str(base / "runs"),
        "VLLM_OBS_LOG_LEVEL": "debug",
        "XDG_CACHE_HOME": str(base / "cache"),
        "TMPDIR": str(base / "tmp"),
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        "NOTIFY_SOCKET": manager.name,
        "WATCHDOG_USEC": "1000000",
    }
    with _core_files_wanted():
        server = Server(*model, *flags, env=variables)
    try:
        server.wait_ready(120)
        server.wait_observed()
        found = Leaky(server, receiver, base)
        found.told += manager.received()
        for process in [psutil.Process(server.process.pid), *server.family]:
            found.core_limits[" ".join(process.cmdline())] = resource.prlimit(process.pid, resource.RLIMIT_CORE)[0]
        _ask_all(found)
        _ask_for_anothers_prompt(found)
        streams = _open_streams(found)
        _look_all(found)
        record = ["record", str(base / "recording"), "--run", str(_run(base))]
        _command(base, *record)
        server.child("EngineCore").kill()
        await_that(lambda: any((_run(base) / "incidents").glob("[!.]*")), 60)
        for stream in streams:
            stream.join(60)
        found.told += manager.received()
        _change_keys(found)
        server.stop()
        found.told += manager.received()
        _command(base, "incident", "show")
        yield found
    finally:
        server.close()


@contextlib.contextmanager
def _core_files_wanted() -> Iterator[None]:
    """As where somebody has said `ulimit -c unlimited`, as far as that is allowed here."""
    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (before[1], before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, before)


def _change_keys(found: Leaky) -> None:
    (found.base / "keys").write_text(f"team\t{KEYS[1]}x\n")

    def statuses() -> list[int]:
        return [found.ask("GET", "/version", key=key) for key in (*KEYS, f"{KEYS[1]}x")]

    await_that(lambda: statuses() == [200, 401, 200], 3 * 1.0)


def _run(base: Path) -> Path:
    (run,) = (path for path in (base / "runs").iterdir() if path.is_dir())
    return run


def _command(base: Path, *arguments: str) -> None:
    """Run one of our commands; what it says is kept beside the rest."""
    done = subprocess.run(
        [sys.executable, "-m", "vllm_obs", *arguments],
        env={**os.environ, "VLLM_OBS_RUN_DIR": str(base / "runs")},
        capture_output=True,
        timeout=60,
        check=True,
    )
    (base / f"said-by-{arguments[0]}").write_bytes(done.stdout + done.stderr)


def _ask_all(found: Leaky) -> None:
    for key in KEYS:
        for path, body in GOOD:
            body = body if path == "/tokenize" else {"model": NAME, **body}
            assert found.ask("POST", path, body, key) == 200, (path, body)
        for path, body in BAD:
            assert found.ask("POST", path, {"model": NAME, **body}, key) == 400, (path, body)
    for path, key, status in (
        ("/v1/models", WRONG_KEY, 401),
        (f"/{TARGET}", KEYS[0], 404),
        (f"/v1/responses/{TARGET}", KEYS[0], 404),
        (f"/v1/completions?q={TARGET}", KEYS[0], 405),
        (f"/metrics?q={TARGET}", WRONG_KEY, 200),
        (f"/livez?q={TARGET}", WRONG_KEY, 200),
    ):
        assert found.ask("GET", path, key=key) == status, path
    assert found.ask("POST", "/v1/completions", {"prompt": "a"}, **{"Content-Type": TARGET}) == 415


def _ask_for_anothers_prompt(found: Leaky) -> None:
    for key in (KEYS[1], KEYS[0], KEYS[0]):
        _, text = found.exchange("POST", "/v1/completions", {"prompt": [77] * 100, "max_tokens": 1}, key)
        details = json.loads(text)["usage"]["prompt_tokens_details"]
        found.num_cached.append((details or {}).get("cached_tokens", 0))


def _open_streams(found: Leaky) -> list[threading.Thread]:
    def read() -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            found.ask("POST", "/v1/completions", LONG)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()

    def are_running() -> bool:
        running: int = json.loads(found.look("GET", "/inspect/state"))["requests"]["num_running"]
        return running == len(threads)

    await_that(are_running)
    found.looks[WHILE_TWO_RUN] = found.looks["GET /inspect/state"]
    return threads


def _look_all(found: Leaky) -> None:
    """Every route of the inspector, with things that are there."""
    document = json.loads(found.look("GET", "/openapi.json"))
    rows = json.loads(found.look("GET", "/inspect/requests"))["requests"]
    named = {"name": str(rows[-1]["request_id"]), "number": "3", "block_id": "1", "file": "none"}
    for path, methods in document["paths"].items():
        if "get" in methods:
            found.look("GET", INSPECTED.sub(lambda part: named[part[1]], path))
    for row in rows:
        found.look("GET", f"/inspect/requests/{row['request_id']}")
    found.look("POST", "/inspect/stacks", "{}")
    assert len(found.looks) > 30
    for accept in ("*/*", "application/openmetrics-text"):
        connection = found.server.connect()
        connection.request("GET", "/metrics", headers={"Accept": accept})
        found.looks[f"metrics {accept}"] = connection.getresponse().read()
        connection.close()

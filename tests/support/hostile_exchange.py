"""A real server under hostile requests: what it answers, and that each leaves it unharmed."""

import contextlib
import http.client
import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

import psutil
from serving import Server, serving
from withheld import Withheld

from vllm_obs.engine.errors import Reason
from vllm_obs.server.errors import MAX_BODY_BYTES, MAX_ECHO_CHARS, TYPE_OF_STATUS

REASONS = frozenset(get_args(Reason))
KEY, OTHER_KEY = "s3cret-one", "s3cret-two"
FLAGS = ("--dtype", "float32", "--max-model-len", "2048", "--max-logprobs", "100", "--api-key", KEY, OTHER_KEY)
AUTHORIZED = {"authorization": f"Bearer {KEY}"}
JSON = {"content-type": "application/json"}

LIVE_SECONDS = 3 * 0.1
"""Three times what is promised."""
MAX_GROWTH_BYTES = 32 << 20
SETTLE_SECONDS = 3.0
"""In which what a request took is given back."""
IDLE_SECONDS = 10.0
_CHUNK_CHARS = MAX_ECHO_CHARS // 2
_LEVELS = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")

Headers = Mapping[str, str | bytes]


@dataclass(frozen=True)
class Case:
    """A request and how it is to be answered; `status` 200 has neither reason nor param.

    `reasons` holds every word that may be answered. `param` is not looked at where `any_param`, but for that it
    names a field of the body. `says` is a pattern of what the message tells.
    """

    row: str
    path: str
    body: bytes
    status: int = 400
    reasons: tuple[str, ...] = ("invalid_value",)
    param: str | None = None
    any_param: bool = False
    headers: Headers = field(default_factory=dict)
    method: str = "POST"
    says: str = ""

    def __str__(self) -> str:
        shown = self.body if len(self.body) < 120 else self.body[:60] + b"..." + self.body[-40:]
        return f"{self.row} {self.method} {self.path[:60]} {dict(self.headers) or ''} {shown!r}"


@dataclass(frozen=True)
class Reply:
    """What came back, and after how long."""

    status: int
    headers: dict[str, str]
    content: bytes
    seconds: float

    @property
    def error(self) -> dict[str, Any]:
        """The `error` of its body."""
        return dict(json.loads(self.content)["error"])


class Hostile:
    """A server with two keys, and the state that no request may leave changed."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._processes = [psutil.Process(server.process.pid), server.child("EngineCore")]
        self._tree = [process.pid for process in (*self._processes, server.child("Observer"))]
        self._connection = server.connect(20)
        self._lived = server.connect(20)
        self.growth_bytes = 0
        """The most that one request has left behind."""
        self.slowest_live_seconds = 0.0

    def warm_up(self) -> None:
        """Have it take what the longest prompt takes, once and for all."""
        longest = {"prompt": [30] * 2047, "max_tokens": 1}
        assert self.ask("/v1/completions", json.dumps(longest).encode()).status == 200

    def close(self) -> None:
        """Let go of the connections."""
        self._connection.close()
        self._lived.close()

    def ask(
        self, path: str, body: bytes | None = None, headers: Headers | None = None, method: str = "POST"
    ) -> Reply:
        """One exchange with the key and JSON's media type, unless `headers` say otherwise ("" sends none)."""
        sent: dict[str, str | bytes] = {**AUTHORIZED, **JSON, **(headers or {})}
        begun = time.monotonic()
        try:
            response = self._send(method, path, body, sent)
            content = response.read()
        except (http.client.HTTPException, OSError):
            self._connection.close()  # it was closed while idle, or by the request before
            begun = time.monotonic()
            response = self._send(method, path, body, sent)
            content = response.read()
        told = {name.lower(): value for name, value in response.getheaders()}
        return Reply(response.status, told, content, time.monotonic() - begun)

    def _send(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str | bytes]
    ) -> http.client.HTTPResponse:
        connection = self._connection
        connection.putrequest(method, path, skip_host="host" in headers, skip_accept_encoding=True)
        for name, value in headers.items():
            if value:
                connection.putheader(name, value)
        connection.putheader("content-length", str(len(body or b"")))
        connection.endheaders(body)
        return connection.getresponse()

    def first_events(self, path: str, body: bytes, num_events: int) -> tuple[Reply, list[Any]]:
        """A reply of which only the first events are read where it is a stream; then the client goes."""
        connection = self.server.connect(20)
        begun = time.monotonic()
        try:
            connection.request("POST", path, body, {**AUTHORIZED, **JSON})
            response = connection.getresponse()
            told = {name.lower(): value for name, value in response.getheaders()}
            if not told["content-type"].startswith("text/event-stream"):
                return Reply(response.status, told, response.read(), time.monotonic() - begun), []
            lines = (line[6:] for line in response if line.startswith(b"data: {"))
            events = [json.loads(line) for line, _ in zip(lines, range(num_events), strict=False)]
            return Reply(response.status, told, b"", time.monotonic() - begun), events
        finally:
            connection.close()

    @contextlib.contextmanager
    def unharmed(self) -> Iterator[None]:
        """Whatever is asked inside leaves the server alive, in time, and no larger than it may be."""
        before = self.resident_bytes()
        yield
        self.check_live()
        self.check_size(before)

    def check_size(self, before: int) -> None:
        """Fail unless no more than MAX_GROWTH_BYTES have been added, once what was taken for a while is back."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while (growth := self.resident_bytes() - before) > MAX_GROWTH_BYTES:
            assert time.monotonic() < deadline, f"{growth / 2**20:.1f} MiB more than before"
            time.sleep(0.05)
        self.growth_bytes = max(self.growth_bytes, growth)

    def check_live(self) -> float:
        """Fail unless liveness answers in time and no process is another one; how long it took.

        What others on the machine took from the server meanwhile is no part of it.
        """
        withheld, begun = Withheld(self.server.process.pid, self._tree), time.monotonic()
        try:
            self._lived.request("GET", "/livez")
            response = self._lived.getresponse()
        except (http.client.HTTPException, OSError):
            self._lived.close()
            withheld, begun = Withheld(self.server.process.pid, self._tree), time.monotonic()
            self._lived.request("GET", "/livez")
            response = self._lived.getresponse()
        response.read()
        waited, excused = time.monotonic() - begun, withheld.seconds()
        took = waited - excused
        self.slowest_live_seconds = max(self.slowest_live_seconds, took)
        assert response.status == 200
        assert took <= LIVE_SECONDS, f"liveness took {waited:.3f} s, of which others took {excused:.3f} s"
        assert all(process.is_running() for process in self._processes), "a process is gone"
        return took

    def check_idle(self, seconds: float = IDLE_SECONDS) -> None:
        """Fail unless nothing runs, waits or holds a block; aborts may take a moment."""
        deadline = time.monotonic() + seconds
        while busy := {name: level for name, level in self._levels().items() if level}:
            assert time.monotonic() < deadline, busy
            time.sleep(0.02)

    def _levels(self) -> dict[str, float]:
        text = self.server.exposition()
        found = {name: re.findall(rf"^vllm:{name}{{[^}}]*}} (\S+)$", text, re.MULTILINE) for name in _LEVELS}
        assert all(found.values()), text[:500]
        return {name: sum(map(float, values)) for name, values in found.items()}

    def resident_bytes(self) -> int:
        """Of the API server and its engine."""
        return sum(int(process.memory_info().rss) for process in self._processes)


@contextlib.contextmanager
def hostile(*flags: str) -> Iterator[Hostile]:
    """The default model with short prompts, two keys, and these flags."""
    with serving(*FLAGS, *flags) as server:
        server.wait_observed()
        running = Hostile(server)
        running.warm_up()
        try:
            yield running
        finally:
            running.close()


def check_refusal(reply: Reply, sent: bytes = b"") -> None:
    """Fail unless a reply that is not 2xx has the one shape and tells at most 64 characters of what was sent."""
    assert reply.headers["content-type"] == "application/json", reply
    assert reply.headers.get("x-request-id"), reply
    assert len(reply.content) <= MAX_BODY_BYTES, len(reply.content)
    error = reply.error
    assert list(error) == ["message", "type", "param", "code", "reason"], error
    assert (error["code"], error["type"]) == (reply.status, TYPE_OF_STATUS[reply.status]), error
    assert error["reason"] in REASONS, error
    assert error["param"] is None or isinstance(error["param"], str), error
    assert error["message"], error
    assert (reply.status in (429, 503)) == ("retry-after" in reply.headers), reply.headers
    _check_echo(error["message"], sent.decode("utf-8", "replace"))


def check_case(case: Case, reply: Reply) -> None:
    """Fail unless the reply is the one that the case is to get."""
    assert reply.status == case.status, f"{reply.status} {reply.content[:300]!r}"
    if case.status < 300:
        return
    check_refusal(reply, case.body)
    error = reply.error
    assert error["reason"] in case.reasons, error
    if not case.any_param:
        assert error["param"] == case.param, error
    elif error["reason"] != "too_deep":  # then nobody has looked at its fields
        assert _names_a_field(error["param"], case.body), error
    assert re.search(case.says, error["message"], re.DOTALL), error
    assert "instance of" not in error["message"], "the names of classes are nobody's business"


def _names_a_field(param: str | None, body: bytes) -> bool:
    return param is not None and re.split(r"[.\[]", param)[0] in json.loads(body)


def _check_echo(message: str, sent: str) -> None:
    """Any 65 characters in a row hold an aligned piece of 32: few of those have to be looked for."""
    pieces = (message[at : at + _CHUNK_CHARS] for at in range(0, len(message) - _CHUNK_CHARS, _CHUNK_CHARS))
    if any(piece in sent for piece in pieces):
        runs = (message[at : at + MAX_ECHO_CHARS + 1] for at in range(len(message) - MAX_ECHO_CHARS))
        assert not any(run in sent for run in runs), f"it tells more than {MAX_ECHO_CHARS} characters: {message}"

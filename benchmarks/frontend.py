"""Measures what the processes around a model cost: CPU time a streamed token, over an engine that runs no model.

    .venv/bin/python benchmarks/frontend.py [--concurrency 32] [--paths completions chat] [-- flags of the server]
    .venv/bin/python benchmarks/frontend.py --trees before=/tmp/before/src after=src --rounds 3

The steps of the synthetic engine take as long as a model's would (--step-ms), so that the load is one of a server
that keeps up. Requests are of 128 tokens in and 64 to 192 out, so that they begin one by one. CPU of the client is
not counted. `--trees` are source trees whose servers are measured in turn. Medians and ranges over the rounds.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import time
from collections import deque
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from started_server import started

PORT = 8943
MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
"""Its tokenizer makes the text; its weights are not read."""
NUM_PROMPT_TOKENS = 128
LEAST_TOKENS, MOST_TOKENS = 64, 192
WORD = "the "
"""A token, but for those of the template."""
NUM_TEMPLATE_TOKENS = 30
CONNECT_SECONDS = 10.0
REQUEST_SECONDS = 120.0
DONE = b"data: [DONE]\n\n"


class Load(NamedTuple):
    """Requests to one path, so many at a time; how many tokens each is to have."""

    path: str
    concurrency: int
    lengths: list[int]

    @classmethod
    def of(cls, kind: str, concurrency: int, num_requests: int) -> "Load":
        """The same lengths for every server and path."""
        draw = random.Random(0)
        path = "/v1/chat/completions" if kind == "chat" else "/v1/completions"
        return cls(path, concurrency, [draw.randint(LEAST_TOKENS, MOST_TOKENS) for _ in range(num_requests)])

    @property
    def num_tokens(self) -> int:
        return sum(self.lengths)

    def request(self, number: int) -> bytes:
        """One of them as it is sent."""
        fields: dict[str, Any] = {"max_tokens": self.lengths[number], "ignore_eos": True, "stream": True}
        if "chat" in self.path:
            text = f"{number} " + WORD * (NUM_PROMPT_TOKENS - NUM_TEMPLATE_TOKENS)
            fields["messages"] = [{"role": "user", "content": text}]
        else:
            draw = random.Random(number)
            fields["prompt"] = [draw.randrange(100, 40_000) for _ in range(NUM_PROMPT_TOKENS)]
        body = json.dumps(fields).encode()
        head = f"POST {self.path} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
        return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


class Connection(asyncio.Protocol):
    """A connection that counts what comes back, and looks at its end only: it is to cost little."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self._end = b""
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._end = (self._end + data)[-64:]
        if DONE in self._end and self._end.endswith(b"0\r\n\r\n") and not self._over.done():
            self._over.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._over.done():
            self._over.set_exception(exc or ConnectionError("closed"))

    async def ask(self, request: bytes) -> None:
        """Return once the whole stream was there."""
        self._end, self._over = b"", asyncio.get_running_loop().create_future()
        self.transport.write(request)
        await asyncio.wait_for(self._over, REQUEST_SECONDS)


async def send(load: Load) -> None:
    """All requests of a load; raises where one fails."""
    waiting = deque(range(len(load.lengths)))
    loop = asyncio.get_running_loop()

    async def work() -> None:
        _, connection = await asyncio.wait_for(
            loop.create_connection(Connection, "127.0.0.1", PORT), CONNECT_SECONDS
        )
        while waiting:
            await connection.ask(load.request(waiting.popleft()))
        connection.transport.close()

    await asyncio.gather(*(work() for _ in range(load.concurrency)))


def cpu_seconds(pid: int) -> dict[str, float]:
    """What the processes of a server have used until now, user and system, by title."""
    used = {}
    root = psutil.Process(pid)
    for process in (root, *root.children(recursive=True)):
        times, title = process.cpu_times(), " ".join(process.cmdline())
        used[title.removeprefix("vllm-obs::")[:24]] = times.user + times.system
    return used


class Figures(NamedTuple):
    """CPU milliseconds a token by process, and tokens a second, of one round."""

    cpu_ms: dict[str, float]
    tokens_per_second: float


def measured(pid: int, load: Load) -> Figures:
    """Send a load to the server; what it cost."""
    begun_at, before = time.monotonic(), cpu_seconds(pid)
    asyncio.run(send(load))
    ended_at, after = time.monotonic(), cpu_seconds(pid)
    spent = {title: 1e3 * (used - before.get(title, 0.0)) / load.num_tokens for title, used in after.items()}
    return Figures(spent, load.num_tokens / (ended_at - begun_at))


def main() -> None:
    """Start servers in turn, send the loads, print CPU by process."""
    options = _arguments()
    steps = {
        "base_seconds": options.step_ms / 1e3,
        "seconds_per_token": 0.0,
        "seconds_per_row": 0.0,
        "num_layers": 1,
    }
    flags = [MODEL, "--load-format", "synthetic", "--model-loader-extra-config", json.dumps(steps)]
    flags += ["--disable-uvicorn-access-log", *options.flags]
    trees = [tree.partition("=")[::2] for tree in options.trees]
    found: dict[tuple[str, str], list[Figures]] = {}
    for number in range(options.rounds):
        for name, source in trees[:: 1 if number % 2 == 0 else -1]:
            environment = {**os.environ, "PYTHONPATH": str(Path(source).absolute())} if source else None
            with started(flags, PORT, environment) as server:
                for kind in options.paths:
                    asyncio.run(send(Load.of(kind, options.concurrency, options.concurrency)))
                    load = Load.of(kind, options.concurrency, options.num_requests)
                    found.setdefault((kind, name), []).append(measured(server.pid, load))
    for (kind, name), rounds in found.items():
        _print(f"{kind} {name}".strip(), rounds)


def _print(name: str, rounds: list[Figures]) -> None:
    speeds = [figures.tokens_per_second for figures in rounds]
    print(f"{name}: {statistics.median(speeds):.0f} tokens/s; CPU ms a token, median (range) of {len(rounds)}")
    for title in rounds[0].cpu_ms:
        print(f"  {title:24} {_spread([figures.cpu_ms.get(title, 0.0) for figures in rounds])}")
    both = [sum(ms for title, ms in figures.cpu_ms.items() if "Observer" not in title) for figures in rounds]
    print(f"  {'without the Observer':24} {_spread(both)}", flush=True)


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.4f} ({min(values):.4f} to {max(values):.4f})"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--num-requests", type=int, default=256)
    parser.add_argument("--paths", nargs="+", choices=["completions", "chat"], default=["completions", "chat"])
    parser.add_argument("--step-ms", type=float, default=20.0, help="how long a step takes")
    parser.add_argument("--trees", nargs="+", default=["="], metavar="NAME=SOURCE")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("flags", nargs="*", help="flags of the servers, after --")
    return parser.parse_args()


if __name__ == "__main__":
    main()

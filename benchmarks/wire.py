"""Measures what API server and engine pay for talking: encoding, decoding, and the way there and back.

    .venv/bin/python benchmarks/wire.py

A second process echoes over a Unix-domain socket. "raw" sends the frames of a request as they are and gets
those of a step's outputs back, with pyzmq and nothing of ours; "whole" encodes the request, decodes it there,
encodes the outputs and decodes them here. Both ends sleep while they wait, and share the cores. Microseconds,
medians and p99. "cold" is the CPU time of one call after 96 MB were read, as between two steps of a model.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Callable, Sequence

import numpy as np
import zmq

from vllm_obs.engine.codec_arrays import Buffer
from vllm_obs.engine.messages import EngineCoreOutputs, EngineCoreRequest, SamplingSpec, SchedulerStats
from vllm_obs.engine.sockets import make_socket, socket_endpoint
from vllm_obs.engine.wire import FrameEncoder, decode_outputs, decode_request

PROMPT_TOKENS = (128, 8192)
ROWS = (1, 64, 256)
BURST, ROUNDS = 50, 40
COLD_ROUNDS = 100
PAUSE_SECONDS = 0.001
NOW = 86_400 * 10**9


def request(num_tokens: int) -> EngineCoreRequest:
    """An ADD with that prompt."""
    prompt = np.arange(num_tokens, dtype=np.int32)
    return EngineCoreRequest(request_id(0), 0, 1, prompt, SamplingSpec(seed=7), 0, None, NOW)


def request_id(number: int) -> str:
    """An id as the API server makes them."""
    return f"{number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128:032x}-0"


def outputs(num_rows: int) -> EngineCoreOutputs:
    """A step in which each row got a token."""
    return EngineCoreOutputs(
        client_index=0,
        engine_index=0,
        generation=1,
        step=12_345,
        request_ids=[request_id(row) for row in range(num_rows)],
        num_new_tokens=[1] * num_rows,
        new_token_ids=list(range(num_rows)),
        finish_reasons=[-1] * num_rows,
        stop_token_ids=[-1] * num_rows,
        num_cached_tokens=[0] * num_rows,
        logprobs=[],
        prompt_logprobs=[],
        errors=[],
        timings=[],
        detours=[],
        utility=None,
        stats=SchedulerStats(num_rows, 0, 0.5, 0),
        sampled_at=NOW,
        sent_at=NOW,
    )


def cold_microseconds(act: Callable[[], object]) -> float:
    """The median CPU time of a call that finds the caches full of something else."""
    other, took = np.ones(12_000_000), []
    for _ in range(COLD_ROUNDS):
        other.sum()
        begun_at = time.thread_time_ns()
        act()
        took.append((time.thread_time_ns() - begun_at) / 1e3)
    return statistics.median(took)


def microseconds(act: Callable[[], object]) -> float:
    """The median over rounds."""
    return statistics.median(timeit.repeat(act, number=BURST, repeat=ROUNDS)) / BURST * 1e6


def coding(name: str, encode: Callable[[], Sequence[Buffer]], decode: Callable[[Sequence[Buffer]], object]) -> str:
    """A line of the first table."""
    frames = encode()
    num_bytes = sum(map(len, frames))
    figures = [each(act) for act in (encode, lambda: decode(frames)) for each in (microseconds, cold_microseconds)]
    return f"| {name} | {num_bytes} | {' | '.join(f'{figure:.1f}' for figure in figures)} |"


def echo(endpoint: str, num_rows: int) -> None:
    """The second process: answer raw frames with raw frames, a request with outputs; nothing ends it."""
    encoder, step = FrameEncoder(), outputs(num_rows)
    raw = [bytes(frame) for frame in encoder.outputs(step)]
    with zmq.Context() as context, make_socket(context, zmq.DEALER) as socket:
        socket.connect(endpoint)
        socket.send(b"here")
        socket.poll(30_000)
        while True:
            kind, *frames = socket.recv_multipart()
            if kind == b"end":
                return
            if kind == b"whole":
                decode_request(frames)
            socket.send_multipart(raw if kind == b"raw" else encoder.outputs(step))
            socket.poll(30_000)


class Line:
    """Both ends of a connection to an echo."""

    def __init__(self, num_rows: int) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="wire-", dir="/tmp")
        endpoint = socket_endpoint(self._directory.name, "echo")
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = make_socket(self._context, zmq.DEALER)
        self._socket.bind(endpoint)
        self._encoder = FrameEncoder()
        self._child = subprocess.Popen([sys.executable, __file__, "--echo", endpoint, "--rows", str(num_rows)])
        self._socket.poll(30_000)
        assert self._socket.recv() == b"here"

    def round_trips(self, kind: bytes, message: EngineCoreRequest, num_trips: int) -> list[float]:
        """How long each took (µs)."""
        raw, took = [bytes(frame) for frame in self._encoder.request(message)], []
        for _ in range(num_trips):
            time.sleep(PAUSE_SECONDS)
            begun_at = time.perf_counter_ns()
            frames = raw if kind == b"raw" else self._encoder.request(message)
            self._socket.send_multipart([kind, *frames])
            self._socket.poll(30_000)
            answer = self._socket.recv_multipart()
            if kind != b"raw":
                decode_outputs(answer)
            took.append((time.perf_counter_ns() - begun_at) / 1e3)
        return took

    def close(self) -> None:
        """End the echo."""
        self._socket.send(b"end")
        self._child.wait(10)
        self._socket.close()
        self._context.term()
        self._directory.cleanup()


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trips", type=int, default=500)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--echo", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.echo:
        echo(options.echo, options.rows[0])
        return
    encoder = FrameEncoder()
    print("| message | bytes | encode | cold | decode | cold |\n| --- | --- | --- | --- | --- | --- |")
    for size in PROMPT_TOKENS:
        message = request(size)
        print(coding(f"request of {size} tokens", lambda m=message: encoder.request(m), decode_request))  # type: ignore[misc]
    for rows in options.rows:
        step = outputs(rows)
        print(coding(f"outputs of {rows} rows", lambda s=step: encoder.outputs(s), decode_outputs))  # type: ignore[misc]
    print("\n| there and back, outputs of | raw p50 / p99 | whole p50 / p99 |\n| --- | --- | --- |")
    for rows in options.rows:
        line = Line(rows)
        kinds = [sorted(line.round_trips(kind, request(128), options.trips)) for kind in (b"raw", b"whole")]
        line.close()
        cells = [f"{took[len(took) // 2]:.0f} / {took[len(took) * 99 // 100]:.0f}" for took in kinds]
        print(f"| {rows} rows | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()

"""Measures what telemetry costs a server under load: runs with all of it, and with none, in turn, in pairs.

With all of it: every process records, the Observer derives metrics and exports the spans of every request to a
receiver on this host, and /metrics is scraped (--scrape-seconds). With none: `--disable-telemetry`. Flags after
`--` go to both servers. Nothing else should run on the machine.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
from intervals import interval
from prometheus_client.parser import text_string_to_metric_families
from recorder import NOW, keyframe_records, microseconds, request_id, step_records

from vllm_obs.engine.core_keyframes import TURN_STEPS
from vllm_obs.telemetry.flight_recorder import FlightRecorder
from vllm_obs.telemetry.records import RequestTaken

COMMAND = [sys.executable, "-m", "vllm_obs"]
READY_SECONDS = 120.0
OBSERVER_SECONDS = 30.0
"""The Observer may be up later than the server, and has no metrics before."""
EXPORT_SECONDS = 2.0
"""After the load, for the spans that wait to be sent in one go: they are a part of what the load cost."""
SETTLE_SECONDS = 6.0
"""Before the load: what the Observer does once a start (each process's memory is looked up) is not the load's."""
TIMED_ROUNDS = 1000


@dataclass
class Run:
    """One server under one load. CPU seconds are those spent during the load, by process title."""

    has_telemetry: bool
    tokens_per_second: float
    p99_itl_ms: float
    num_tokens: int
    cpu_seconds: dict[str, float]
    num_steps: int
    ring_seconds: float

    @property
    def all_cpu_seconds(self) -> float:
        return sum(self.cpu_seconds.values())

    @property
    def telemetry_cpu_seconds(self) -> float:
        """The Observer's, and what writing to the rings is estimated to take of the others'."""
        observer = sum(seconds for title, seconds in self.cpu_seconds.items() if "Observer" in title)
        return observer + self.ring_seconds


@dataclass
class RingCost:
    """Seconds that a step and another record take to write, the least of many rounds in a warm cache.

    A step has its share of the keyframes that come every few steps.
    """

    step_seconds: float
    record_seconds: float
    records_a_step: float

    @classmethod
    def measured(cls, num_rows: int) -> "RingCost":
        """For steps of so many rows."""
        with tempfile.TemporaryDirectory() as directory:
            recorder = FlightRecorder(Path(directory) / "EngineCore_DP0.ring", "EngineCore_DP0")
            step, turn = step_records(num_rows), keyframe_records(num_rows)
            taken = RequestTaken(request_id(1), 0, NOW, NOW, 200, 128, 0)
            step_cost, turn_cost, taken_cost = (
                microseconds(recorder, records, TIMED_ROUNDS) for records in (step, turn, [taken])
            )
            recorder.close()
        step_seconds = (step_cost + turn_cost / TURN_STEPS) / 1e6
        return cls(step_seconds, taken_cost / 1e6, len(step) + len(turn) / TURN_STEPS)

    def seconds(self, num_steps: int, num_records: int) -> float:
        """What so many records took, of which those of the steps are a part."""
        others = max(0.0, num_records - num_steps * self.records_a_step)
        return num_steps * self.step_seconds + others * self.record_seconds


@contextmanager
def receiver() -> Iterator[str]:
    """An OTLP endpoint that takes everything and looks at nothing."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def served(port: int, flags: list[str]) -> Iterator[psutil.Process]:
    """A ready server."""
    with tempfile.TemporaryFile() as log:
        command = [*COMMAND, "serve", "--port", str(port), "--disable-uvicorn-access-log", *flags]
        # The receiver speaks HTTP, and gRPC is what is spoken unless said otherwise.
        environment = {**os.environ, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        try:
            deadline = time.monotonic() + READY_SECONDS
            while not answers(f"http://127.0.0.1:{port}/readyz"):
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise SystemExit(f"the server did not start:\n{log.read().decode()}")
                time.sleep(0.2)
            yield psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait(60)


def answers(url: str) -> bool:
    """Whether there is a good answer."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def cpu_seconds(root: psutil.Process) -> dict[str, float]:
    """User and system time so far of every process of the server, by title."""
    found = {}
    for process in [root, *root.children(recursive=True)]:
        times = process.cpu_times()
        found[f"{' '.join(process.cmdline())[:40]} ({process.pid})"] = times.user + times.system
    return found


@contextmanager
def repeating(seconds: float, act: Callable[[], object]) -> Iterator[None]:
    """Call it every so many seconds in a thread of its own."""
    is_over = threading.Event()

    def repeat() -> None:
        while not is_over.wait(seconds):
            act()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def counters(port: int) -> tuple[int, int]:
    """Steps answered, and records written by all serving processes, so far."""
    url, deadline = f"http://127.0.0.1:{port}/metrics", time.monotonic() + OBSERVER_SECONDS
    while not answers(url) and time.monotonic() < deadline:
        time.sleep(0.2)
    with urllib.request.urlopen(url, timeout=20) as answer:
        text = answer.read().decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    steps = sum(sample.value for sample in samples if sample.name == "vllm_obs_steps_total")
    records = sum(
        sample.value
        for sample in samples
        if sample.name == "vllm_obs_recorder_records_total" and sample.labels["role"] != "Observer"
    )
    return int(steps), int(records)


def load(port: int, options: argparse.Namespace) -> dict[str, Any]:
    """Send the same requests as in every other run; the benchmark client's report."""
    with tempfile.TemporaryDirectory() as directory:
        sizes = ["--random-input-len", str(options.input_len), "--random-output-len", str(options.output_len)]
        amount = ["--num-prompts", str(options.num_prompts), "--max-concurrency", str(options.concurrency)]
        output = ["--save-result", "--result-dir", directory, "--result-filename", "report.json"]
        command = [*COMMAND, "bench", "serve", "--port", str(port), "--ignore-eos", "--disable-tqdm"]
        subprocess.run([*command, *sizes, *amount, *output], check=True, stdout=subprocess.DEVNULL)
        report: dict[str, Any] = json.loads((Path(directory) / "report.json").read_text())
    return report


def measure(has_telemetry: bool, cost: RingCost, options: argparse.Namespace) -> Run:
    """Start a server, load it, and end it."""
    port = options.port
    with receiver() as endpoint:
        own = ["--otlp-traces-endpoint", f"{endpoint}/v1/traces"] if has_telemetry else ["--disable-telemetry"]
        with served(port, [*own, *options.flags]) as root:
            metrics = f"http://127.0.0.1:{port}/metrics"
            warm = argparse.Namespace(**{**vars(options), "num_prompts": options.concurrency, "output_len": 8})
            load(port, warm)
            if has_telemetry:
                counters(port)  # which waits for the Observer
            time.sleep(SETTLE_SECONDS)
            counted, begun = counters(port) if has_telemetry else (0, 0), cpu_seconds(root)
            with repeating(options.scrape_seconds, lambda: has_telemetry and answers(metrics)):
                report = load(port, options)
            steps, records = counters(port) if has_telemetry else (0, 0)
            time.sleep(EXPORT_SECONDS)
            ended = cpu_seconds(root)
    num_steps = steps - counted[0]
    return Run(
        has_telemetry=has_telemetry,
        tokens_per_second=report["output_throughput"],
        p99_itl_ms=report["p99_itl_ms"],
        num_tokens=report["total_output_tokens"],
        cpu_seconds={title: seconds - begun.get(title, 0.0) for title, seconds in ended.items()},
        num_steps=num_steps,
        ring_seconds=cost.seconds(num_steps, records - counted[1]),
    )


def report_run(run: Run) -> None:
    """One line a run."""
    name = "telemetry" if run.has_telemetry else "none     "
    print(
        f"{name} {run.tokens_per_second:8.2f} tokens/s  p99 ITL {run.p99_itl_ms:8.2f} ms  "
        f"CPU {run.all_cpu_seconds:7.2f} s  {run.num_steps} steps",
        flush=True,
    )


def report_all(pairs: list[tuple[Run, Run]], cost: RingCost) -> None:
    """The ratios, and where telemetry's CPU time went."""
    observed = [run for run, _ in pairs]
    used = sum(run.all_cpu_seconds for run in observed)
    rings = sum(run.ring_seconds for run in observed)
    telemetry = sum(run.telemetry_cpu_seconds for run in observed)
    print(
        f"throughput, with / without   {interval([a.tokens_per_second / b.tokens_per_second for a, b in pairs])}"
    )
    print(f"p99 ITL, with / without      {interval([a.p99_itl_ms / b.p99_itl_ms for a, b in pairs])}")
    per_token = [(a.all_cpu_seconds / a.num_tokens) / (b.all_cpu_seconds / b.num_tokens) for a, b in pairs]
    print(f"CPU per token, with / without {interval(per_token)}")
    print(
        f"telemetry's CPU {telemetry:.2f} of {used:.2f} s = {100 * telemetry / used:.2f} %: "
        f"Observer {telemetry - rings:.2f} s, rings {rings:.3f} s (estimated)"
    )
    print(f"rings in the engine: {cost.step_seconds * 1e6:.1f} us a step (estimated)")


def main() -> None:
    """Print a line a run, then the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=6, help="runs of each kind (default: 6)")
    parser.add_argument("--concurrency", type=int, default=32, help="requests under way (default: 32)")
    parser.add_argument("--num-prompts", type=int, default=96, help="requests in a run (default: 96)")
    parser.add_argument("--input-len", type=int, default=128, help="prompt tokens (default: 128)")
    parser.add_argument("--output-len", type=int, default=128, help="output tokens (default: 128)")
    parser.add_argument(
        "--scrape-seconds", type=float, default=5.0, help="time between scrapes of /metrics (default: 5)"
    )
    parser.add_argument("--port", type=int, default=8765, help="port of the servers (default: 8765)")
    parser.add_argument("flags", nargs="*", help="flags of both servers, after --")
    options = parser.parse_args()
    cost = RingCost.measured(options.concurrency)
    pairs = []
    for number in range(options.pairs):
        # Each kind goes first in half of the pairs, so that a machine that warms up favours none.
        order = (True, False) if number % 2 == 0 else (False, True)
        runs = {}
        for has_telemetry in order:
            runs[has_telemetry] = measure(has_telemetry, cost, options)
            report_run(runs[has_telemetry])
        pairs.append((runs[True], runs[False]))
    report_all(pairs, cost)


if __name__ == "__main__":
    main()

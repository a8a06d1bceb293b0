"""Simulates many engines behind the load balancer, fed with recorded arrivals, and compares its policies' tails.

    .venv/bin/python benchmarks/balancer.py --all-views
    .venv/bin/python benchmarks/balancer.py --traces benchmarks/traces/azure_2023_code.csv --spread-seconds 5

Discrete events, no model: steps take as long as a synthetic engine's (StepTimeModel). Each copy of the trace
stands for one service; what a copy's prompts share is its prefix. Engines report after a step; a client sees
that a little later, and counts what it sent since. The oracle knows what work each engine really has left, to
the token, at the moment it chooses. "Alone" is each request on an engine of its own: no balancer can do better.
"""

import argparse
import heapq
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from arrivals import SYNTHETIC, TRACES, Arrival, made_up, overlaid, read_trace
from fleet import Engine, Job, Limits, Report

from vllm_obs.engine.balancer import BALANCER_NAMES, EngineLoad, LoadBalancer, make_balancer
from vllm_obs.engine.synthetic.step_time import StepTimeModel

ORACLE = "oracle"
PERCENTILES = (50, 99, 99.9)
HEADING = "| policy | TTFT p50 / p99 / p99.9 (s) | end to end p50 / p99 / p99.9 (s) |"


@dataclass(frozen=True)
class Scene:
    """A fleet and how it is seen: reports come every step, but not more often than each `report_seconds`.

    What clients and engines say to each other takes `delay_seconds`. Does a client count those it sent until the
    engine has taken them, or (`is_forgetful`) only until any report comes?
    """

    num_engines: int
    num_clients: int
    report_seconds: float
    delay_seconds: float
    is_forgetful: bool
    limits: Limits
    model: StepTimeModel


class Client:
    """An API server: one balancer, and what it knows of the engines."""

    def __init__(self, index: int, balancer: LoadBalancer, scene: Scene) -> None:
        self.index = index
        self._balancer = balancer
        self._is_forgetful = scene.is_forgetful
        self._loads = [EngineLoad(0, 0, 0, True)] * scene.num_engines
        self._num_sent = [0] * scene.num_engines

    def choose(self, arrival: Arrival) -> int:
        """The engine for this request, which is sent there."""
        engine = self._balancer.choose(self._loads, b"%d" % arrival.copy)
        load = self._loads[engine]
        self._loads[engine] = load._replace(num_in_flight=load.num_in_flight + 1)
        self._num_sent[engine] += 1
        return engine

    def take(self, engine: int, report: Report) -> None:
        """An engine's report."""
        in_flight = 0 if self._is_forgetful else self._num_sent[engine] - report.num_taken[self.index]
        self._loads[engine] = EngineLoad(report.num_waiting, report.num_running, in_flight, True)


class Delivery(NamedTuple):
    """A request reaches its engine."""

    engine: int
    job: Job


class StepEnd(NamedTuple):
    """An engine's step is over."""

    engine: int


class Reported(NamedTuple):
    """A report reaches the clients."""

    engine: int
    report: Report


class Fleet:
    """All engines and clients in one time."""

    def __init__(self, scene: Scene, policy: str, seed: int) -> None:
        self._scene = scene
        self._is_oracle = policy == ORACLE
        self._engines = [Engine(scene.model, scene.limits, scene.num_clients) for _ in range(scene.num_engines)]
        self._clients = [
            Client(index, make_balancer("least_loaded" if self._is_oracle else policy, seed + index), scene)
            for index in range(scene.num_clients)
        ]
        self._reported_at = [-math.inf] * scene.num_engines
        self._events: list[tuple[float, int, Delivery | StepEnd | Reported]] = []
        self._numbers = itertools.count()

    def run(self, arrivals: Sequence[Arrival]) -> list[Job]:
        """All requests, served."""
        clients = itertools.cycle(self._clients)
        jobs = []
        for arrival in arrivals:
            self._pass_until(arrival.at)
            client = next(clients)
            job = Job(arrival, client.index)
            engine = self._least_work() if self._is_oracle else client.choose(arrival)
            self._engines[engine].send(job)
            self._at(arrival.at + self._scene.delay_seconds, Delivery(engine, job))
            jobs.append(job)
        self._pass_until(math.inf)
        return jobs

    def _least_work(self) -> int:
        return min(range(len(self._engines)), key=lambda index: self._engines[index].seconds_left)

    def _at(self, moment: float, event: Delivery | StepEnd | Reported) -> None:
        heapq.heappush(self._events, (moment, next(self._numbers), event))

    def _pass_until(self, moment: float) -> None:
        while self._events and self._events[0][0] <= moment:
            now, _, event = heapq.heappop(self._events)
            if isinstance(event, Delivery):
                engine = self._engines[event.engine]
                engine.inbox.append(event.job)
                if not engine.is_stepping:
                    self._step(event.engine, now)
            elif isinstance(event, StepEnd):
                self._end_step(event.engine, now)
            else:
                for client in self._clients:
                    client.take(event.engine, event.report)

    def _step(self, index: int, now: float) -> bool:
        engine = self._engines[index]
        seconds = engine.begin_step()
        engine.is_stepping = seconds is not None
        if seconds is not None:
            self._at(now + seconds, StepEnd(index))
        return engine.is_stepping

    def _end_step(self, index: int, now: float) -> None:
        report = self._engines[index].end_step(now)
        is_due = now - self._reported_at[index] >= self._scene.report_seconds
        if not self._step(index, now) or is_due:
            self._reported_at[index] = now
            self._at(now + self._scene.delay_seconds, Reported(index, report))


def alone(arrivals: Sequence[Arrival], scene: Scene) -> list[Job]:
    """Each request on an engine of its own."""
    jobs = []
    for arrival in arrivals:
        engine = Engine(scene.model, scene.limits, 1)
        jobs.append(Job(arrival, 0))
        engine.inbox.append(jobs[-1])
        now = arrival.at + scene.delay_seconds
        while (seconds := engine.begin_step()) is not None:
            now += seconds
            engine.end_step(now)
    return jobs


def percentile(values: Sequence[float], percent: float) -> float:
    """The least of the sorted values that so many percent of them do not exceed."""
    return values[max(0, math.ceil(len(values) * percent / 100) - 1)]


def row(name: str, jobs: Sequence[Job]) -> str:
    """A line of the table: both latencies' percentiles, in seconds."""
    first = sorted(job.first_token_at - job.arrival.at for job in jobs)
    whole = sorted(job.ended_at - job.arrival.at for job in jobs)
    cells = [" / ".join(f"{percentile(values, p):.2f}" for p in PERCENTILES) for values in (first, whole)]
    return f"| {name} | {' | '.join(cells)} |"


def print_table(title: str, rows: Iterator[str]) -> None:
    """A table as it stands in docs/performance.md."""
    print(f"\n{title}\n\n{HEADING}\n| --- | --- | --- |")
    for line in rows:
        print(line, flush=True)


def scenes(scene: Scene) -> Iterator[tuple[str, Scene]]:
    """How old what clients know may be, and how many clients there are."""
    yield "1 client, a report each step", scene
    yield "4 clients, a report each step", replace(scene, num_clients=4)
    yield "4 clients, a report each 0.1 s", replace(scene, num_clients=4, report_seconds=0.1)
    yield "4 clients, a report each 1 s", replace(scene, num_clients=4, report_seconds=1.0)
    yield (
        "4 clients that forget at a report what is still on its way",
        replace(scene, num_clients=4, is_forgetful=True),
    )


def read_arguments() -> argparse.Namespace:
    """What to simulate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = sorted(TRACES.glob("*.csv"))
    parser.add_argument(
        "--traces", type=Path, nargs="+", default=default, help=f"see traces/README.md; {SYNTHETIC} is made up"
    )
    parser.add_argument("--rows", type=int, default=20_000, help="at most so many of each trace (default 20000)")
    parser.add_argument("--copies", type=int, default=40, help="of each trace, laid over each other (default 40)")
    parser.add_argument("--spread-seconds", type=float, default=0.0, help="between copies; 0: the whole trace")
    parser.add_argument("--engines", type=int, default=64)
    parser.add_argument("--prefix-tokens", type=int, default=0, help="that a copy's prompts share (default 0)")
    parser.add_argument("--prefixes", type=int, default=8, help="that an engine's cache holds (default 8)")
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--max-num-batched-tokens", type=int, default=2048)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--all-views", action="store_true", help="also with older reports and more clients")
    return parser.parse_args()


def main() -> None:
    """Print a table for each way the fleet is seen."""
    options = read_arguments()
    traces = [
        made_up(options.seed) if str(path) == SYNTHETIC else read_trace(path, options.rows)
        for path in options.traces
    ]
    arrivals = overlaid(traces, options.copies, options.spread_seconds, options.seed)
    limits = Limits(options.max_num_seqs, options.max_num_batched_tokens, options.prefixes, options.prefix_tokens)
    scene = Scene(options.engines, 1, 0.0, 0.001, False, limits, StepTimeModel())
    names = ", ".join(path.name for path in options.traces)
    print(f"{names}, {options.copies} copies each: {len(arrivals)} requests in {arrivals[-1].at:.0f} s")
    print_table(f"{options.engines} engines", iter([row("alone", alone(arrivals, scene))]))
    begun_at = time.monotonic()
    for title, seen in scenes(scene) if options.all_views else [next(scenes(scene))]:
        policies = (ORACLE, *BALANCER_NAMES)
        print_table(title, (row(name, Fleet(seen, name, options.seed).run(arrivals)) for name in policies))
    print(f"\nsimulated in {time.monotonic() - begun_at:.0f} s")


if __name__ == "__main__":
    main()

"""Measures what the Observer spends on a run that is over: its records come again as they came, second by second.

    .venv/bin/python benchmarks/observer.py RUN_DIR

RUN_DIR is that of a server under load; copy it while the server lives, as the end of a run removes it. Nothing is
waited for, so that caches are warmer than beside a model that computes; what is printed is the CPU time of the
thread that observes, in milliseconds for each second of the run, by what it does.
"""

import argparse
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.flight_recorder import FlightRecorder
from vllm_obs.telemetry.observer_config import ObserverConfig
from vllm_obs.telemetry.observer_loop import ROUND_SECONDS
from vllm_obs.telemetry.observer_process import open_service
from vllm_obs.telemetry.observer_service import SAVE_SECONDS
from vllm_obs.telemetry.record_moments import moment_of
from vllm_obs.telemetry.records import Record, StepPlanned
from vllm_obs.telemetry.ring_tail import RingTail
from vllm_obs.telemetry.view import RecordsLost, Source, SourceGone

SCRAPE_SECONDS = 5.0
NS = 1_000_000_000


class Written(NamedTuple):
    """A record, who wrote it, and when (monotonic ns), as far as that can be told."""

    at: int
    source: Source
    record: Record


class Costs:
    """CPU seconds by what they were spent on."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.is_counting = False

    def of(self, name: str, act: Callable[[], object]) -> object:
        """What it gives; what it takes is counted."""
        begun_at = time.thread_time()
        result = act()
        if self.is_counting:
            self.seconds[name] += time.thread_time() - begun_at
        return result


def written(run_dir: Path) -> list[Written]:
    """All that the serving processes of a run recorded, oldest first."""
    return sorted(_all_facts(run_dir), key=lambda each: each.at)


def _all_facts(run_dir: Path) -> Iterator[Written]:
    tail = RingTail(run_dir)
    latest: dict[Source, int] = defaultdict(int)
    while batch := list(tail.drain()):
        for source, fact in batch:
            if source.role != "Observer" and not isinstance(fact, RecordsLost | SourceGone):
                latest[source] = max(latest[source], moment_of(fact))
                yield Written(latest[source], source, fact)
    tail.close()


class Replay:
    """An Observer over rings that are written again; `moment` is where its clock stands."""

    def __init__(self, facts: list[Written], directory: Path) -> None:
        self._facts = iter(facts)
        self._next = next(self._facts, None)
        self._rings = {source: _ring(directory, source) for source in {each.source: None for each in facts}}
        self.moment = next(each.at for each in facts if isinstance(each.record, StepPlanned)) - NS
        self.service = open_service(ObserverConfig(directory, model_name="m"), lambda: self.moment)
        self.costs = Costs()

    def run(self) -> float:
        """Round by round to the end; the seconds that were counted: all but those before the first step."""
        num_rounds = 0
        while self._next is not None:
            self._write()
            self._observe(num_rounds)
            self.costs.is_counting = True
            self.moment += int(ROUND_SECONDS * NS)
            num_rounds += 1
        return (num_rounds - 1) * ROUND_SECONDS

    def close(self) -> None:
        """Let go of every file."""
        self.service.views.close(self.moment)
        self.service.observer.close()
        for ring in self._rings.values():
            ring.close()

    def _write(self) -> None:
        while self._next is not None and self._next.at <= self.moment:
            self._rings[self._next.source].record(self._next.record)
            self._next = next(self._facts, None)
        for ring in self._rings.values():
            ring.heartbeat(self.moment)
            ring.advance()

    def _observe(self, number: int) -> None:
        service, costs = self.service, self.costs
        while not costs.of("drain", service.observer.drain_slice):
            continue
        if service.watchdog is not None:
            costs.of("watchdog", partial(service.watchdog.look, self.moment, True))
        if number % round(1 / ROUND_SECONDS) == 0:
            costs.of("ticks", partial(service.views.tick, self.moment))
            if service.filer is not None:
                costs.of("deaths", partial(service.filer.look, self.moment))
        if number % round(SAVE_SECONDS / ROUND_SECONDS) == 0:
            costs.of("checkpoint", service.save)
        if number % round(SCRAPE_SECONDS / ROUND_SECONDS) == 0:
            costs.of("scrape", partial(service.views.render, ""))


def _ring(directory: Path, source: Source) -> FlightRecorder:
    ring = FlightRecorder(directory / f"{source.role}.{source.generation}.ring", source.role)
    ring.doing(Activity.WAITING)
    return ring


def main() -> None:
    """Print what each part took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dir", type=Path, help="the run's directory, or a copy")
    facts = written(parser.parse_args().run_dir)
    with tempfile.TemporaryDirectory() as directory:
        replay = Replay(facts, Path(directory))
        seconds = replay.run()
        replay.close()
    for name, spent in sorted(replay.costs.seconds.items(), key=lambda item: -item[1]):
        print(f"{name:12s} {1e3 * spent / seconds:7.3f} ms/s")
    total = sum(replay.costs.seconds.values())
    print(f"{len(facts)} records in {seconds:.0f} s: {1e3 * total / seconds:.3f} ms/s")


if __name__ == "__main__":
    main()

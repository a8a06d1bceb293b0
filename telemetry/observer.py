"""Observer: takes facts from where they come and derives the state of the run and all its views from them."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from vllm_obs.telemetry.rate_windows import RateWindows
from vllm_obs.telemetry.record_moments import moment_of
from vllm_obs.telemetry.run_facts import RunFacts
from vllm_obs.telemetry.run_state import RunState
from vllm_obs.telemetry.view import Fact, RecordsLost, Source, SourceGone, View

CHUNK_RECORDS = 512
SLICE_NS = 20_000_000
"""A slice of draining ends after this, so that whoever waits for an answer gets it."""
NS = 1_000_000_000

_logger = logging.getLogger(__name__)


class FactTail(Protocol):
    """Where facts come from: the rings of a run, or a recording."""

    def drain(self, max_records: int) -> Iterator[tuple[Source, Fact]]:
        """The next facts, at most so many; none when all that there is has been read."""

    def close(self) -> None:
        """Let go of what is open."""


class NoFacts:
    """Where nothing comes from, until it is known where facts do."""

    def drain(self, max_records: int) -> Iterator[tuple[Source, Fact]]:
        """Nothing."""
        return iter(())

    def close(self) -> None:
        """Nothing is open."""


@dataclass
class ObserverCost:
    """What the Observer did and what it cost. `num_failed_facts` are those that could not be applied."""

    num_facts: int = 0
    num_failed_facts: int = 0
    num_slices: int = 0
    drain_seconds: float = 0.0
    max_slice_seconds: float = 0.0
    last_fact_at: int = 0
    newest_moment: int = 0
    """Where a recording's time stands; live there is the clock."""
    resumed_at: int = 0
    """When this Observer went on from a checkpoint (monotonic ns), 0 if it began afresh: it knows the steps and
    ended requests since `resumed_from`, when that was saved."""
    resumed_from: int = 0
    cpu_seconds_before: float = 0.0
    """CPU time of the run's earlier Observers, as far as they saved it."""
    num_failed_saves: int = 0
    """Checkpoints that could not be written: the next Observer goes on from an older one."""

    @property
    def cpu_seconds(self) -> float:
        """CPU time of all the run's Observers."""
        return self.cpu_seconds_before + time.process_time()

    def state(self) -> list[float]:
        """For a checkpoint."""
        return [self.cpu_seconds]

    def restore(self, state: Any) -> None:
        """Go on from a checkpoint."""
        self.cpu_seconds_before = float(state[0])


class Observer:
    """The run's state, kept up to date by draining. Used from one thread.

    `clock` gives monotonic ns, None for a recording: its time stands still at its newest moment. `wall_offset`
    turns moments into wall time (ns). A fact that cannot be
    applied is counted and passed over: telemetry may fail, and goes on.
    """

    def __init__(
        self,
        run: str,
        run_dir: Path | None = None,
        clock: Callable[[], int] | None = time.monotonic_ns,
        wall_offset: int = 0,
    ) -> None:
        self.run = run
        self.wall_offset = wall_offset
        self.tail: FactTail = NoFacts()
        """Set before the first drain."""
        self.caveat = ""
        """What is wrong with where the facts come from, in words."""
        self.cost = ObserverCost()
        self.state = RunState()
        self.rates = RateWindows()
        self.facts = RunFacts(run_dir, run)
        self.state.recall = self.facts.described
        self.is_live = clock is not None
        self._clock = clock
        self.add_views((self.rates, self.facts))

    def add_views(self, views: Iterable[View]) -> None:
        """Tell these of every fact from now on."""
        for view in views:
            self.state.add_view(view)

    def now(self) -> int:
        """The moment (monotonic ns) that ages and windows are counted from."""
        return self._clock() if self._clock is not None else self.cost.newest_moment

    def drain_slice(self) -> bool:
        """Take what is new, for SLICE_NS at most; whether that was all there is."""
        begun_at = time.monotonic_ns()
        num_taken = CHUNK_RECORDS
        elapsed = 0
        num_before = self.cost.num_facts
        while num_taken == CHUNK_RECORDS and elapsed < SLICE_NS:
            num_taken = self._take_chunk()
            elapsed = time.monotonic_ns() - begun_at
        is_drained = num_taken < CHUNK_RECORDS
        if is_drained:  # with a backlog, what looks overdue may only be unread
            self.state.tick(self.now())
        self._count_slice(begun_at, self.cost.num_facts > num_before)
        return is_drained

    def close(self) -> None:
        """Let go of the source of facts."""
        self.tail.close()

    def _take_chunk(self) -> int:
        num_taken = 0
        for source, fact in self.tail.drain(CHUNK_RECORDS):
            num_taken += 1
            try:
                self.state.apply(source, fact)
            except Exception:
                self._count_failure(fact)
            if self._clock is None and not isinstance(fact, RecordsLost | SourceGone):
                self.cost.newest_moment = max(self.cost.newest_moment, moment_of(fact))
        self.cost.num_facts += num_taken
        return num_taken

    def _count_slice(self, begun_at: int, has_facts: bool) -> None:
        now = time.monotonic_ns()
        seconds = (now - begun_at) / NS
        cost = self.cost
        cost.num_slices += 1
        cost.drain_seconds += seconds
        cost.max_slice_seconds = max(cost.max_slice_seconds, seconds)
        if has_facts:
            cost.last_fact_at = now

    def _count_failure(self, fact: Fact) -> None:
        self.cost.num_failed_facts += 1
        # Every doubling is told, so that a view which always fails does not fill the log.
        if self.cost.num_failed_facts & (self.cost.num_failed_facts - 1) == 0:
            kind = type(fact).__name__
            _logger.exception("a %s was passed over (%d such failures so far)", kind, self.cost.num_failed_facts)

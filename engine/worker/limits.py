"""Limits: what a worker's machine can do at best, found out at the end of the warm-up; no start fails by it."""

import logging
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol, cast

from vllm_obs.telemetry.memory_samples import Ranges
from vllm_obs.telemetry.recorder import ProcessRecorder
from vllm_obs.telemetry.records import WorkerLimits

_logger = logging.getLogger(__name__)


class MachineLimits(NamedTuple):
    """The best rates of matrix products (in numbers of `dtype`) and of reading memory; 0 where it is not known."""

    dtype: str
    flops_per_second: float
    bytes_per_second: float


class Limited(Protocol):
    """A worker that can tell; one that has no `machine_limits` has none."""

    def machine_limits(self, weights: Ranges) -> MachineLimits:
        """By measuring, or as the device is made up. `weights` are where the model lies in the host's memory."""


def record_limits(worker: object, rank: int, weights: Ranges, recorder: ProcessRecorder) -> None:
    """Find out a loaded worker's limits and record them. Nothing is raised."""
    if not hasattr(worker, "machine_limits"):
        return
    try:
        limits = cast(Limited, worker).machine_limits(weights)
    except Exception:  # telemetry may fail, serving may not
        _logger.warning("the limits of this machine could not be measured", exc_info=True)
        return
    recorder.record(WorkerLimits(rank, *limits, measured_at=time.monotonic_ns()))


class Trial(NamedTuple):
    """Something to be timed: `run` does `amount` of it (operations, bytes)."""

    amount: float
    run: Callable[[], object]


class BestRate:
    """The best rate of trials until a deadline (ns): the first, and those that would be over by then."""

    def __init__(self, deadline: int, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._deadline = deadline
        self._clock = clock
        self.rate = 0.0
        """Amount per second, 0 before the first trial."""

    def has_time_for(self, amount: float) -> bool:
        """Whether so much, done as fast as the best so far, would be over in time, or nothing was done yet."""
        return not self.rate or self._clock() + amount * 1e9 / self.rate < self._deadline

    def take(self, trial: Trial) -> None:
        """Run it once."""
        begun_at = self._clock()
        trial.run()
        num_ns = self._clock() - begun_at
        if num_ns > 0:
            self.rate = max(self.rate, trial.amount * 1e9 / num_ns)

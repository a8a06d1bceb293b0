"""SampleJob: one sampling of this process, from the order to the file, in a thread of its own."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from vllm_obs.telemetry.sample_file import SUFFIX, write_samples
from vllm_obs.telemetry.sample_set import IN_PROCESS, SampleSet
from vllm_obs.telemetry.sample_stacks import DEFAULT_RATE_HZ, SampleBounds, StackSampler

STOP_SECONDS = 2.0
"""How long a sampling that is stopped may take to write what it has."""


class SampleOrder(NamedTuple):
    """What is asked of a process: a capture's name, the directory (absolute) of its files, how long and how often.

    More than a minute or 250 looks a second are not given.
    """

    profile: str
    directory: str
    seconds: float
    rate_hz: float = DEFAULT_RATE_HZ

    @property
    def bounds(self) -> SampleBounds:
        """Seconds and rate, brought into their ranges."""
        return SampleBounds(self.seconds, self.rate_hz).clipped()


class SampleEnd(NamedTuple):
    """What became of a sampling; `error` says why there is no file."""

    num_samples: int
    ended_at: int
    written_at: int
    files: list[str]
    error: str


class SampleJob:
    """Nothing runs before `start`, nor after `end` is there. `on_end()` is called once, from the job's thread."""

    def __init__(self, order: SampleOrder, role: str, on_end: Callable[[], None] = lambda: None) -> None:
        self.order = order
        self.end: SampleEnd | None = None
        self._role = role
        self._on_end = on_end
        self._sampler = StackSampler(order.bounds)
        self._thread = threading.Thread(target=self._run, name="stack sampler", daemon=True)

    def start(self) -> None:
        """Begin to sample."""
        self._thread.start()

    def stop(self) -> None:
        """Sample no longer; what was taken is written."""
        self._sampler.stop()

    def join(self, timeout_seconds: float = STOP_SECONDS) -> bool:
        """Wait for the end; whether it came."""
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        """Whatever goes wrong here is said in the end, and reaches nothing else."""
        try:
            self._sampler.run()
            self.end = self._write()
        except Exception as error:
            now = time.monotonic_ns()
            self.end = SampleEnd(0, self._sampler.ended_at or now, now, [], f"{type(error).__name__}: {error}")
        self._on_end()

    def _write(self) -> SampleEnd:
        samples = self._samples()
        path = Path(self.order.directory) / f"{self._role}{SUFFIX}"
        write_samples(path, samples)
        return SampleEnd(samples.num_samples, samples.ended_at, time.monotonic_ns(), [path.name], "")

    def _samples(self) -> SampleSet:
        sampler = self._sampler
        frames, stacks = sampler.code()
        return SampleSet(
            profile=self.order.profile,
            role=self._role,
            pid=os.getpid(),
            sampler=IN_PROCESS,
            rate_hz=sampler.bounds.rate_hz,
            begun_at=sampler.begun_at,
            ended_at=sampler.ended_at,
            frames=frames,
            stacks=stacks,
            threads=sampler.book.samples(),
            is_in_order=sampler.book.is_in_order,
            num_unplaced=sampler.book.num_unplaced,
            cost=sampler.cost,
        )

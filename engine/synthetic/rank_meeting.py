"""RankMeeting: where the ranks of a synthetic engine wait for each other in every step, as a model's ranks do."""

import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path

MEET_TIMEOUT_SECONDS = 200.0
"""Below the executor's own deadline of a call, since this one can name the rank that did not come."""
_SHORTEST_NAP_SECONDS = 2e-4
_LONGEST_NAP_SECONDS = 0.01
_WORD_BYTES = 8


class RankMeeting:
    """One word for each rank in a file of the run directory: the last step whose forward pass it has ended.

    A rank that stands still holds the others up here, as it would in the exchange of a real model's activations.
    """

    def __init__(self, path: Path, rank: int, num_ranks: int, sleep: Callable[[float], None] = time.sleep) -> None:
        self._rank = rank
        self._sleep = sleep
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.ftruncate(fd, _WORD_BYTES * num_ranks)
            words = mmap.mmap(fd, _WORD_BYTES * num_ranks)
        finally:
            os.close(fd)
        # Nobody closes it: a rank's process ends without ceremony, and the file goes with the run directory.
        self._words = memoryview(words).cast("Q")

    def meet(self, step: int) -> None:
        """Return when all ranks have come to this step. TimeoutError names one that has not."""
        words = self._words
        words[self._rank] = step
        deadline, nap = time.monotonic() + MEET_TIMEOUT_SECONDS, _SHORTEST_NAP_SECONDS
        while min(words) < step:
            if time.monotonic() >= deadline:
                late = words.tolist().index(min(words))
                raise TimeoutError(f"rank {late} did not come to step {step} within {MEET_TIMEOUT_SECONDS:g} s")
            self._sleep(nap)
            nap = min(2 * nap, _LONGEST_NAP_SECONDS)

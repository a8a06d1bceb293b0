"""Race: whether one configuration is faster than another, by runs in turn, so that noise is not taken for it."""

import statistics
from collections.abc import Callable
from typing import NamedTuple

from vllm_obs.engine.kernels.triton.device_timer import Timer

NUM_ROUNDS = 15
NUM_FIRST_ROUNDS = 3
HOPELESS = 1.25
"""So much slower after the first rounds is not raced to the end."""
LEAST_GAIN = 0.02
"""What is faster by less stays as it was: between two runs of a card there is as much."""
LEAST_WINS = 0.8
"""Of the rounds."""


class Verdict(NamedTuple):
    """`ratio`: the challenger's time over the holder's, the median over all rounds. `seconds`: its median time."""

    is_faster: bool
    ratio: float
    seconds: float


class Race:
    """Runs in turn, first one and then the other: what slows the card down for a while slows both."""

    def __init__(self, timer: Timer) -> None:
        self._timer = timer

    def run(self, holder: Callable[[], object], challenger: Callable[[], object]) -> Verdict:
        """Both have run once before, so that neither is compiled while it is timed."""
        ratios: list[float] = []
        times: list[float] = []
        for number in range(NUM_ROUNDS):
            first, second = (holder, challenger) if number % 2 == 0 else (challenger, holder)
            seconds = {first: self._timer.seconds(first)}
            seconds[second] = self._timer.seconds(second)
            ratios.append(seconds[challenger] / seconds[holder])
            times.append(seconds[challenger])
            if number + 1 == NUM_FIRST_ROUNDS and min(ratios) > HOPELESS:
                break
        ratio = statistics.median(ratios)
        num_wins = sum(each < 1.0 for each in ratios)
        is_faster = ratio <= 1.0 - LEAST_GAIN and num_wins >= LEAST_WINS * len(ratios)
        return Verdict(is_faster, ratio, statistics.median(times))

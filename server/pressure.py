"""Pressure: how near the server is to what it cannot bear, and what it refuses step by step before that."""

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from enum import IntEnum

from vllm_obs.server.errors import ApiError
from vllm_obs.telemetry.memory_room import MemoryRoom

logger = logging.getLogger(__name__)

RELIEF = 0.1
"""A measure that was taken stays until the pressure is so far below its threshold."""

MEMORY_FROM, MEMORY_TO = 0.80, 0.97
"""The shares of memory in use up to which there is no pressure, and from which on there can be no more."""
MAX_LAG_SECONDS = 1.0
NUM_LAGS = 5
"""A loop that is late once is not under pressure: the least of so many seconds counts."""

QUEUE_WEIGHT = LOOP_WEIGHT = 0.9
"""A full queue refuses for itself, and what makes a loop late may be a neighbour: neither shuts everybody out."""
CACHE_WEIGHT = 0.7
"""A full KV cache is a busy server, no more."""

TOLD_SECONDS = 10.0
"""A measure that the log has told of is not told again so soon; a harder one is, at once."""

SOURCES = ("queue", "kv_cache", "memory", "event_loop")


class Measure(IntEnum):
    """What is refused under pressure; each includes those before it."""

    NOTHING = 0
    MANY = 1
    LOW_PRIORITY = 2
    ALL = 3


THRESHOLDS = {Measure.MANY: 0.8, Measure.LOW_PRIORITY: 0.9, Measure.ALL: 1.0}


class Pressure:
    """The pressure from 0 to 1, that of its worst source, and the measure in force; looked at once a second."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.value = 0.0
        self.source = ""
        self.measure = Measure.NOTHING
        self._lags: deque[float] = deque(maxlen=NUM_LAGS)
        self._least_bytes = 0
        self._clock = clock
        self._told = self._hardest_told = Measure.NOTHING
        self._told_at = 0.0

    def begin(self, memory: MemoryRoom) -> None:
        """The engine is not loaded yet: what memory it takes is no pressure."""
        self._least_bytes = memory.used_bytes

    def look(self, queue_fill: float, kv_cache_usage: float, memory: MemoryRoom, lag_seconds: float) -> None:
        """Take in the levels of now."""
        self._least_bytes = min(self._least_bytes or memory.used_bytes, memory.used_bytes)
        self._lags.append(lag_seconds)
        lag = min(self._lags) / MAX_LAG_SECONDS if len(self._lags) == NUM_LAGS else 0.0
        self.take(
            {
                "queue": QUEUE_WEIGHT * queue_fill,
                "kv_cache": CACHE_WEIGHT * kv_cache_usage,
                "memory": memory_pressure(memory, self._least_bytes),
                "event_loop": LOOP_WEIGHT * min(1.0, lag),
            }
        )

    def take(self, sources: Mapping[str, float]) -> None:
        """Set the pressure to that of the worst of its sources, and take or lift measures."""
        self.source, worst = max(sources.items(), key=lambda pair: pair[1])
        self.value = min(1.0, worst)
        self.measure = max(
            (each for each, threshold in THRESHOLDS.items() if self._holds(each, threshold)),
            default=Measure.NOTHING,
        )
        if self.measure > self._told:
            self._tell_rise()
        elif self.measure < self._told:
            self._say(logging.INFO)

    def _tell_rise(self) -> None:
        """Say it at once where it is harder than all that was told lately; else when that is long enough ago."""
        now = self._clock()
        is_due = now - self._told_at >= TOLD_SECONDS
        if is_due or self.measure > self._hardest_told:
            self._told_at, self._hardest_told = now, self.measure
            self._say(logging.WARNING)

    def _say(self, level: int) -> None:
        self._told = self.measure
        refused = _REFUSED[self.measure] or "nothing is refused"
        logger.log(level, "pressure is %.2f (%s): %s", self.value, self.source, refused)

    def _holds(self, measure: Measure, threshold: float) -> bool:
        return self.value >= threshold or (self.measure >= measure and self.value >= threshold - RELIEF)

    def check(self, num_sequences: int = 1, priority: int = 0, is_background: bool = False) -> None:
        """ApiError 429 for a request that is refused now; a `priority` above 0 is a low one."""
        is_refused = (
            self.measure == Measure.ALL
            or (self.measure >= Measure.LOW_PRIORITY and priority > 0)
            or (self.measure >= Measure.MANY and (num_sequences > 1 or is_background))
        )
        if is_refused:
            message = f"the server is under pressure ({self.source} at {self.value:.2f}): {_REFUSED[self.measure]}"
            raise ApiError(message, "under_pressure")


_REFUSED = {
    Measure.NOTHING: "",
    Measure.MANY: "requests with several sequences and background ones are refused",
    Measure.LOW_PRIORITY: "requests of low priority, with several sequences and background ones are refused",
    Measure.ALL: "all new requests are refused",
}


def memory_pressure(room: MemoryRoom, least_bytes: int) -> float:
    """0 where there is enough or nothing is known, 1 just before the kernel would have to kill.

    It is the share taken of what was free at the best of times (`least_bytes` were in use then): a container that
    was made to fit its model is full from the beginning, and not under pressure.
    """
    limit = room.limit_bytes
    if limit <= 0 or room.used_bytes < MEMORY_FROM * limit:
        return 0.0
    most = max(MEMORY_TO * limit, (limit + least_bytes) / 2)
    return min(1.0, max(0.0, (room.used_bytes - least_bytes) / max(1.0, most - least_bytes)))

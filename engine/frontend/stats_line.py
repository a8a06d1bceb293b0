"""The statistics line: what an engine did in the last seconds, in the log, for whoever only has the log."""

import logging
import time
from collections.abc import Callable

from vllm_obs.engine.messages import EngineCoreOutputs

INTERVAL_SECONDS = 10.0
logger = logging.getLogger(__name__)


class StatsLine:
    """Adds up outputs and logs one line every ten seconds in which something ran.

    It is called with each step's outputs and keeps no task of its own, so an idle server logs nothing. The
    rates cover the time since the line before (or since the first output after a quiet time). With
    `aggregate` one line stands for all engines, otherwise each engine has its own. One of several API servers,
    which sees but its own tokens, gives `num_open`: its own open sequences, told beside what the engine runs for
    all of them.
    """

    def __init__(self, enabled: bool, aggregate: bool = False, num_open: Callable[[], int] | None = None) -> None:
        self._enabled = enabled
        self._aggregate = aggregate
        self._num_open = num_open
        self._windows: dict[int, _Window] = {}

    def saw(self, outputs: EngineCoreOutputs) -> None:
        """Count one step's outputs and log when the interval is over."""
        if not self._enabled or outputs.stats is None:
            return
        now = time.monotonic()
        key = -1 if self._aggregate else outputs.engine_index
        window = self._windows.get(key)
        if window is None or now - window.last_at > INTERVAL_SECONDS:
            window = self._windows[key] = _Window(now)
        window.add(outputs, now)
        if now - window.begun_at >= INTERVAL_SECONDS:
            own = None if self._num_open is None else self._num_open()
            logger.info("%s: %s", "All engines" if self._aggregate else f"Engine {key}", window.text(now, own))
            self._windows[key] = _Window(now)


class _Window:
    """Totals since the last line and the newest levels of each engine."""

    def __init__(self, begun_at: float) -> None:
        self.begun_at = self.last_at = begun_at
        self.num_tokens = 0
        self.levels: dict[int, tuple[int, int, float]] = {}

    def add(self, outputs: EngineCoreOutputs, now: float) -> None:
        assert outputs.stats is not None, "the caller looked"
        stats = outputs.stats
        self.last_at = now
        self.num_tokens += len(outputs.new_token_ids)
        self.levels[outputs.engine_index] = (stats.num_running, stats.num_waiting, stats.kv_cache_usage)

    def text(self, now: float, num_own: int | None) -> str:
        running, waiting, usage = (sum(column) for column in zip(*self.levels.values(), strict=True))
        rate = self.num_tokens / (now - self.begun_at)
        own = "" if num_own is None else f"{num_own} open here; of all API servers: "
        return (
            f"{rate:.1f} generated tokens/s, {own}running {running}, waiting {waiting}, "
            f"KV cache {100 * usage / len(self.levels):.1f} %"
        )

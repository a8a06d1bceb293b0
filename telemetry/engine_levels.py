"""EngineLevels: the gauges of one engine, set at a scrape to what is true then."""

from collections.abc import Callable
from typing import Any

from vllm_obs.telemetry.block_view import BlockLevels
from vllm_obs.telemetry.catalogue_vllm import SLEEP_STATES, WAITING_REASONS
from vllm_obs.telemetry.engine_state import EngineState
from vllm_obs.telemetry.live_sequences import LiveSequences
from vllm_obs.telemetry.metric_store import EngineSeries
from vllm_obs.telemetry.records import EngineDescribed

EngineFinder = Callable[[str], EngineState | None]
"""The live engine with this label, the one that the inspector shows."""

NOTHING = LiveSequences()
AWAKE = SLEEP_STATES[0]
GONE = ""
NS = 1e9

_DEFERRED = frozenset({"grammar", "lora_slots", "remote_kv"})
"""Waits for something of the sequence's own; all others are for capacity."""


class EngineLevels:
    """What is true of one engine; `sleep_state` is GONE if it died."""

    def __init__(self, label: str, find_engine: EngineFinder) -> None:
        self.sleep_state = GONE
        self._label = label
        self._find_engine = find_engine
        self._num_blocks = 0
        self._block_size = 0

    @property
    def is_there(self) -> bool:
        """Whether the engine's process lives."""
        return self.sleep_state != GONE

    @property
    def engine(self) -> EngineState | None:
        """The engine as its records tell it, None for one that is gone."""
        return self._find_engine(self._label) if self.is_there else None

    def described(self, record: EngineDescribed) -> None:
        """How large its cache is."""
        self._num_blocks, self._block_size = record.num_blocks, record.block_size

    def show(self, series: EngineSeries, live: LiveSequences, now: int) -> None:
        """Set the gauges (at this monotonic ns); an engine that is gone has none of anything."""
        for state in SLEEP_STATES:
            series.value("vllm:engine_sleep_state", state).set(state == self.sleep_state)
        engine = self.engine
        if engine is None:
            self._show_sequences(series, 0, 0, 0)
            self._show_blocks(series, NOTHING, BlockLevels(0, 0, 0))
            series.value("vllm_obs_oldest_wait_seconds").set(0)
        else:
            line = engine.builder.roster.line
            reasons = line.by_reason()
            num_deferred = sum(reasons[reason] for reason in _DEFERRED)
            self._show_sequences(series, engine.num_running, engine.num_waiting, num_deferred)
            self._show_blocks(series, live, engine.block_levels)
            series.value("vllm_obs_oldest_wait_seconds").set(line.longest_wait_ns(now) / NS)

    def state(self) -> Any:
        """In plain values."""
        return [self.sleep_state, self._num_blocks, self._block_size]

    def restore(self, state: Any) -> None:
        """Go on from a `state`. TypeError or ValueError if it is none."""
        self.sleep_state, self._num_blocks, self._block_size = state

    @staticmethod
    def _show_sequences(series: EngineSeries, num_running: int, num_waiting: int, num_deferred: int) -> None:
        series.value("vllm:num_requests_running").set(num_running)
        series.value("vllm:num_requests_waiting").set(num_waiting)
        for reason, num in zip(WAITING_REASONS, (num_waiting - num_deferred, num_deferred), strict=True):
            series.value("vllm:num_requests_waiting_by_reason", reason).set(num)

    def _show_blocks(self, series: EngineSeries, live: LiveSequences, levels: BlockLevels) -> None:
        for state, num_blocks in zip(("active", "cached", "free"), levels, strict=True):
            series.value("vllm_obs_kv_blocks", state).set(num_blocks)
        usage = levels[0] / self._num_blocks if self._num_blocks else 0.0
        num_slots = self._num_blocks * self._block_size
        num_filled = live.num_filled_slots(levels[0], self._block_size)
        series.value("vllm:kv_cache_usage_perc").set(usage)
        series.value("vllm:gpu_cache_usage_perc").set(usage)
        series.value("vllm_obs_kv_tokens").set(num_filled)
        series.value("vllm_obs_kv_token_occupancy_ratio").set(num_filled / num_slots if num_slots else 0.0)

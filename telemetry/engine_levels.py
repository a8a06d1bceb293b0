"""EngineLevels: the gauges of one engine, set at a scrape to what is true then."""

from collections.abc import Callable
from typing import Any

from vllm_obs.telemetry.catalogue_vllm import SLEEP_STATES, WAITING_REASONS
from vllm_obs.telemetry.engine_state import EngineState
from vllm_obs.telemetry.live_sequences import LiveSequences
from vllm_obs.telemetry.metric_store import EngineSeries
from vllm_obs.telemetry.records import EngineDescribed, StepPlanned

BlockLevels = tuple[int, int, int]
"""Blocks that are active, cached and free."""

EngineFinder = Callable[[str], EngineState | None]
"""The live engine with this label, the one that the inspector shows."""

NOTHING = LiveSequences()
AWAKE = SLEEP_STATES[0]
GONE = ""

_DEFERRED = frozenset({"grammar", "lora_slots", "remote_kv"})
"""Waits for something of the sequence's own; all others are for capacity."""


class EngineLevels:
    """What is true of one engine, and what its last plan said; `sleep_state` is `GONE` when it died."""

    def __init__(self, label: str, find_engine: EngineFinder) -> None:
        self.sleep_state = GONE
        self._label = label
        self._find_engine = find_engine
        self._num_blocks = 0
        self._block_size = 0
        self._planned: BlockLevels = (0, 0, 0)
        self._head_reason = ""

    @property
    def is_there(self) -> bool:
        """Whether the engine's process lives."""
        return self.sleep_state != GONE

    @property
    def engine(self) -> EngineState | None:
        """The engine as its records tell it, None for one that is gone."""
        return self._find_engine(self._label) if self.is_there else None

    def described(self, record: EngineDescribed) -> None:
        """The cache is empty."""
        self._num_blocks, self._block_size = record.num_blocks, record.block_size
        self._planned = (0, 0, record.num_blocks)

    def planned(self, record: StepPlanned) -> None:
        """Levels after a plan."""
        self._planned = (record.num_active_blocks, record.num_cached_blocks, record.num_free_blocks)
        self._head_reason = record.head_reason

    def show(self, series: EngineSeries, live: LiveSequences) -> None:
        """Set the gauges; an engine that is gone has none of anything."""
        for state in SLEEP_STATES:
            series.value("vllm:engine_sleep_state", state).set(state == self.sleep_state)
        engine = self.engine
        if engine is None:
            self._show_sequences(series, 0, 0)
            self._show_blocks(series, NOTHING, (0, 0, 0))
        else:
            self._show_sequences(series, engine.num_running, engine.num_waiting)
            self._show_blocks(series, live, self._blocks(engine))

    def state(self) -> Any:
        """In plain values."""
        return [self.sleep_state, self._num_blocks, self._block_size, list(self._planned), self._head_reason]

    def restore(self, state: Any) -> None:
        """Go on from a `state`. TypeError or ValueError if it is none."""
        self.sleep_state, self._num_blocks, self._block_size, planned, self._head_reason = state
        active, cached, free = planned
        self._planned = (active, cached, free)

    def _show_sequences(self, series: EngineSeries, num_running: int, num_waiting: int) -> None:
        series.value("vllm:num_requests_running").set(num_running)
        series.value("vllm:num_requests_waiting").set(num_waiting)
        reason = WAITING_REASONS[self._head_reason in _DEFERRED]
        for each in WAITING_REASONS:
            series.value("vllm:num_requests_waiting_by_reason", each).set(num_waiting if each == reason else 0)

    def _blocks(self, engine: EngineState) -> BlockLevels:
        """As the block map has them, or as the last plan saw them; where nothing runs nothing is held."""
        if engine.blocks.is_exact:
            return engine.blocks.levels
        active, cached, free = self._planned
        return (active, cached, free) if engine.num_running else (0, active + cached, free)

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

"""LoopWatch: once a second, how late the event loop ran at worst, what waits in it, pressure and garbage."""

import asyncio
import gc
import os
import time

from vllm_obs.server.state import ApiServer
from vllm_obs.telemetry.memory_room import MemoryRoomReader
from vllm_obs.telemetry.records import GarbageSampled, LoopSampled

TICK_NS = 100_000_000
TICKS_A_SAMPLE = 10


class LoopWatch:
    """Asks the loop for a call every tick and measures how late it comes; records a sample every tenth tick."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api
        self._loop = asyncio.get_running_loop()
        self._num_ticks = 0
        self._max_lag_seconds = 0.0
        self._memory = MemoryRoomReader()
        self._wait()

    def stop(self) -> None:
        """Watch no longer."""
        self._timer.cancel()

    def _wait(self) -> None:
        # The loop's own clock may have milliseconds only.
        self._due_at = time.monotonic_ns() + TICK_NS
        self._timer = self._loop.call_later(TICK_NS / 1e9, self._tick)

    def _tick(self) -> None:
        now = time.monotonic_ns()
        self._max_lag_seconds = max(self._max_lag_seconds, (now - self._due_at) / 1e9)
        self._num_ticks += 1
        self._api.recorder.heartbeat(now)
        if self._num_ticks % TICKS_A_SAMPLE == 0:
            self._sample()
            self._sample_garbage()
        self._wait()

    def _sample(self) -> None:
        api, num_sequences, num_deltas = self._api, 0, 0
        if api.is_engine_there:
            num_sequences, num_deltas = api.engine.llm.num_in_flight, api.engine.llm.num_queued_deltas
        self._look_at_pressure()
        num_connections, max_num_connections = api.count_connections()
        api.recorder.record(
            LoopSampled(
                client_index=api.client_index,
                sampled_at=time.monotonic_ns(),
                max_lag_seconds=self._max_lag_seconds,
                num_open_http=api.num_open_http,
                num_open_sequences=num_sequences,
                num_queued_deltas=num_deltas,
                pressure=api.pressure.value,
                pressure_source=api.pressure.source,
                num_connections=num_connections,
                max_num_connections=max_num_connections,
            )
        )
        self._max_lag_seconds = 0.0

    def _look_at_pressure(self) -> None:
        api, memory = self._api, self._memory.read(os.getpid())
        if not api.is_engine_there:
            api.pressure.begin(memory)
            return
        queue = api.engine.llm.queue
        api.pressure.look(queue.fill, queue.kv_cache_usage, memory, self._max_lag_seconds)
        queue.tell_relief()

    def _sample_garbage(self) -> None:
        generations = gc.get_stats()
        self._api.recorder.record(
            GarbageSampled(
                client_index=self._api.client_index,
                sampled_at=time.monotonic_ns(),
                num_collections=[each["collections"] for each in generations],
                num_collected=[each["collected"] for each in generations],
                num_uncollectable=[each["uncollectable"] for each in generations],
            )
        )

"""LoopWatch: once a second, how late the event loop ran at worst, what waits in it, pressure and garbage."""

import asyncio
import gc
import os
import time

from vllm_obs.server.beat import until_beat
from vllm_obs.server.state import ApiServer
from vllm_obs.telemetry.memory_room import MemoryRoom, MemoryRoomReader
from vllm_obs.telemetry.records import GarbageSampled, LoopSampled

TICK_NS = 100_000_000
TICKS_A_SAMPLE = 10
REST_TICKS = 5
"""The ticks that one takes the place of while nothing is asked of the server."""
REST_SAMPLES = 5
"""At rest memory is read for every fifth sample only, which is most of what a sample takes."""
RESTS_A_STALL = 8
"""At least so often it goes round also then within `--stall-timeout`, by which others judge whether it hangs."""


class LoopWatch:
    """Asks the loop for a call every tick and measures how late it comes; records a sample every tenth tick.

    A server at rest has longer ticks, until a request comes: a wake-up costs more than what is done in it.
    """

    def __init__(self, api: ApiServer) -> None:
        self._api = api
        self._loop = asyncio.get_running_loop()
        self._num_ticks = 0
        self._is_resting = False
        self._rest_ticks = max(1, min(REST_TICKS, int(api.server.stall_timeout * 1e9 / TICK_NS / RESTS_A_STALL)))
        api.when_busy.append(self._wake)
        self._max_lag_seconds = 0.0
        self._memory = MemoryRoomReader()
        self._room: MemoryRoom | None = None
        self._num_samples = 0
        self._wait()

    def stop(self) -> None:
        """Watch no longer."""
        self._timer.cancel()
        self._api.when_busy.remove(self._wake)

    def _wait(self) -> None:
        seconds = TICK_NS / 1e9
        if self._is_resting:
            seconds = until_beat(self._rest_ticks * seconds)
        # The loop's own clock may have milliseconds only.
        self._due_at = time.monotonic_ns() + int(seconds * 1e9)
        self._timer = self._loop.call_later(seconds, self._tick)

    def _wake(self) -> None:
        """A request came."""
        if self._is_resting:
            self._is_resting = False
            self._timer.cancel()
            self._wait()

    def _tick(self) -> None:
        now = time.monotonic_ns()
        self._max_lag_seconds = max(self._max_lag_seconds, (now - self._due_at) / 1e9)
        self._num_ticks += self._rest_ticks if self._is_resting else 1
        self._api.recorder.heartbeat(now)
        if self._num_ticks >= TICKS_A_SAMPLE:
            self._num_ticks = 0
            self._sample()
            self._sample_garbage()
        self._is_resting = self._api.is_at_rest
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

    def _look_at_memory(self) -> MemoryRoom:
        self._num_samples += 1
        if self._room is None or not self._is_resting or self._num_samples % REST_SAMPLES == 0:
            self._room = self._memory.read(os.getpid())
        return self._room

    def _look_at_pressure(self) -> None:
        api, memory = self._api, self._look_at_memory()
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

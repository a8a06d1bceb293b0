"""The event loop's lateness is measured, and what waits in it counted."""

import asyncio
import gc
import time
from typing import Any

import pytest
from fake_engine import FakeEngine
from http_app import Served, served

from vllm_obs.engine.sampling_params import SamplingParams
from vllm_obs.server import loop_watch
from vllm_obs.server.config import ServerConfig
from vllm_obs.server.loop_watch import LoopWatch
from vllm_obs.server.pressure import Measure
from vllm_obs.telemetry.memory_room import MemoryRoom
from vllm_obs.telemetry.recorder import MemoryRecorder
from vllm_obs.telemetry.records import GarbageSampled, LoopSampled


@pytest.fixture(autouse=True)
def short_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_watch, "TICK_NS", 5_000_000)


class Heart(MemoryRecorder):
    """Remembers heartbeats too."""

    def __init__(self) -> None:
        super().__init__()
        self.beats: list[int] = []

    def heartbeat(self, now: int) -> None:
        self.beats.append(now)


def samples_of(app: Served) -> list[Any]:
    return app.recorder.of(LoopSampled)


async def next_sample(app: Served) -> Any:
    number = len(samples_of(app))
    async with asyncio.timeout(20):
        while len(samples_of(app)) == number:
            await asyncio.sleep(0.001)
    return samples_of(app)[-1]


def test_a_loop_that_was_held_up_is_told_once() -> None:
    async def scenario() -> None:
        async with served(FakeEngine(lambda request: [])) as app:
            watch = LoopWatch(app.api)
            await next_sample(app)
            time.sleep(0.2)
            late = await next_sample(app)
            assert late.max_lag_seconds >= 0.15
            await next_sample(app)
            assert (await next_sample(app)).max_lag_seconds < late.max_lag_seconds
            watch.stop()
            number = len(samples_of(app))
            await asyncio.sleep(0.1)
            assert len(samples_of(app)) == number

    asyncio.run(scenario())


def test_the_garbage_collectors_work_is_told_with_each_sample() -> None:
    async def scenario() -> None:
        async with served(FakeEngine(lambda request: [])) as app:
            watch = LoopWatch(app.api)
            await next_sample(app)
            gc.collect()
            await next_sample(app)
            watch.stop()
            first, last = app.recorder.of(GarbageSampled)[0], app.recorder.of(GarbageSampled)[-1]
            assert last.num_collections[2] > first.num_collections[2]
            assert len(last.num_collected) == len(last.num_uncollectable) == 3

    asyncio.run(scenario())


def test_what_is_open_and_what_waits_is_counted() -> None:
    async def scenario() -> None:
        engine = FakeEngine(lambda request: [30] * 9)
        async with served(engine) as app:
            app.api.count_connections = lambda: (3, 100)
            watch = LoopWatch(app.api)
            stream = await app.llm.submit("Hi", SamplingParams(max_tokens=2), "handle")
            engine.go.clear()
            asking = asyncio.ensure_future(app.post("/v1/completions", {"prompt": "Hi", "max_tokens": 3}))
            while app.api.num_open_http == 0:
                await asyncio.sleep(0)
            await next_sample(app)
            sample = await next_sample(app)
            assert sample[:2] == (0, sample.sampled_at)
            assert (sample.num_open_http, sample.num_queued_deltas <= 2) == (1, True)
            assert sample.num_open_sequences >= 1
            assert (sample.num_connections, sample.max_num_connections) == (3, 100)
            engine.go.set()
            await asking
            await stream.aclose()
            await next_sample(app)
            sample = await next_sample(app)
            assert (sample.num_open_http, sample.num_open_sequences, sample.num_queued_deltas) == (0, 0, 0)
            watch.stop()

    asyncio.run(scenario())


def test_the_pressure_is_looked_at_and_told_with_each_sample() -> None:
    async def scenario() -> None:
        async with served(FakeEngine(lambda request: [])) as app:
            watch = LoopWatch(app.api)
            watch._memory = FullMemory()  # type: ignore[assignment]
            app.api.pressure.begin(MemoryRoom(100, 50))
            await next_sample(app)
            sample = await next_sample(app)
            assert (sample.pressure, sample.pressure_source) == (1.0, "memory")
            assert app.api.pressure.measure == Measure.ALL
            watch.stop()

    asyncio.run(scenario())


class FullMemory:
    """A machine about to run out of memory."""

    num_reads = 0

    def read(self, pid: int) -> MemoryRoom:
        self.num_reads += 1
        return MemoryRoom(100, 99)


def test_every_tick_is_a_heartbeat_also_before_the_engine_is_there() -> None:
    async def scenario() -> None:
        async with served(FakeEngine(lambda request: []), ready=False) as app:
            heart = app.api.recorder = Heart()
            watch = LoopWatch(app.api)
            async with asyncio.timeout(20):
                while not heart.records:
                    await asyncio.sleep(0.001)
            watch.stop()
            assert len(heart.beats) >= loop_watch.TICKS_A_SAMPLE
            assert heart.beats == sorted(heart.beats)

    asyncio.run(scenario())


def seconds_left(watch: LoopWatch, since: int) -> float:
    return (watch._due_at - since) / 1e9


@pytest.mark.parametrize(("stall_timeout", "rest_seconds"), [(10.0, 0.5), (2.0, 0.2), (1.0, 0.1)])
def test_a_server_at_rest_goes_round_seldom_until_a_request_comes(
    stall_timeout: float, rest_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_watch, "TICK_NS", 100_000_000)
    monkeypatch.setattr(loop_watch, "until_beat", lambda seconds: seconds)

    async def scenario() -> None:
        async with served(FakeEngine(lambda request: []), ServerConfig(stall_timeout=stall_timeout)) as app:
            watch = LoopWatch(app.api)
            begun_at = time.monotonic_ns()
            watch._tick()
            assert seconds_left(watch, begun_at) >= rest_seconds
            app.api.http_begins()
            assert seconds_left(watch, time.monotonic_ns()) <= 0.1
            watch._tick()
            assert seconds_left(watch, time.monotonic_ns()) <= 0.1, "the request is still open"
            watch.stop()
            assert app.api.when_busy == []

    asyncio.run(scenario())


def test_a_server_at_rest_is_sampled_as_often_as_a_busy_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_watch, "TICK_NS", 100_000_000)

    async def scenario() -> None:
        async with served(FakeEngine(lambda request: [])) as app:
            watch = LoopWatch(app.api)
            watch._is_resting = True
            memory = watch._memory = FullMemory()  # type: ignore[assignment]
            for _ in range(2 * 2 * loop_watch.REST_SAMPLES):
                watch._timer.cancel()
                watch._tick()
            assert len(samples_of(app)) == 2 * loop_watch.REST_SAMPLES
            assert memory.num_reads == 3, "the first, and every fifth"
            watch.stop()

    asyncio.run(scenario())

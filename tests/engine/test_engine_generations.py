"""An engine that takes a dead one's place has the next generation, and takes nothing that belongs to another."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fake_executor import expected_output, make_request, tiny_config
from process_watch import gone

from vllm_obs.engine.client_async import AsyncMPClient
from vllm_obs.engine.config import ParallelConfig
from vllm_obs.engine.descendants import descendants
from vllm_obs.engine.errors import EngineDeadError
from vllm_obs.engine.run_dir import RunDirectory
from vllm_obs.engine.wire import FrameEncoder

pytestmark = pytest.mark.usefixtures("child_modules", "run_base")

FAKE_ENGINE = "fake_engine_process"
START_SECONDS = 60.0


@pytest.fixture
def run_dir(run_base: Path) -> Iterator[Path]:
    with RunDirectory.create() as directory:
        yield directory.path


async def die(client: AsyncMPClient) -> None:
    """Kill the engine, and clear away what is left of it."""
    os.kill(client.facts.pid, signal.SIGKILL)
    with contextlib.suppress(EngineDeadError):
        while True:
            await client.get_output()
    deadline = time.monotonic() + 10
    while not client.has_left_nothing and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    assert client.has_left_nothing
    client.shutdown(0)


def test_frames_of_the_generation_before_are_dropped_on_both_sides(run_dir: Path) -> None:
    first = AsyncMPClient.launch(replace(tiny_config(), run_dir=str(run_dir)), module=FAKE_ENGINE)
    clients = [first]

    async def body() -> None:
        await first.ready(START_SECONDS)
        await first.add_request(make_request("a", [1, 2], max_tokens=3))
        old = await first.get_output()
        assert old.generation == 0
        await die(first)
        second = first.successor()
        clients.append(second)
        await second.ready(START_SECONDS)
        assert (second.generation, second.facts.pid != first.facts.pid) == (1, True)
        assert second._link.receive(FrameEncoder().outputs(old)) is None
        assert second.num_dropped == {"generation": 1}
        second._link.send(FrameEncoder().request(make_request("old", [1, 2], generation=0)))
        assert await second.call_utility("dropped_frames") == ["generation"]
        await second.add_request(make_request("b", [4, 5], max_tokens=2, generation=0))  # the client puts its own
        tokens: list[int] = []
        while len(tokens) < 2:
            outputs = await second.get_output()
            assert (outputs.generation, outputs.request_ids) == (1, ["b"])
            tokens += outputs.new_token_ids
        assert tokens == expected_output([4, 5], 2)

    try:
        asyncio.run(body())
    finally:
        for client in clients:
            client.shutdown()
    assert list(run_dir.glob("*.sock")) == []


def test_the_workers_of_a_killed_engine_are_gone_before_its_place_is_taken(run_dir: Path) -> None:
    config = replace(tiny_config(), run_dir=str(run_dir), parallel=ParallelConfig("mp", 2))
    client = AsyncMPClient.launch(config, module=FAKE_ENGINE)

    async def body() -> None:
        await client.ready(START_SECONDS)
        workers = descendants(client.facts.pid)
        assert len(workers) == 2
        assert not client.has_left_nothing
        await die(client)
        assert all(gone(worker, 0.1) for worker in workers)

    try:
        asyncio.run(body())
    finally:
        client.shutdown()

"""An engine as an API server sees it that does not own it: it is told of its life, and talks to it itself."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fake_executor import expected_output, make_request, tiny_config

from vllm_obs.engine.client_async import AsyncMPClient
from vllm_obs.engine.engine_process import EngineProcess
from vllm_obs.engine.engine_sockets import Route
from vllm_obs.engine.errors import EngineDeadError, StartupError
from vllm_obs.engine.messages import EngineFacts
from vllm_obs.engine.run_dir import RunDirectory
from vllm_obs.server.attached_link import AttachedLink
from vllm_obs.telemetry.recorder import MemoryRecorder

SUPPORT = Path(__file__).parent.parent / "support"


@pytest.fixture
def process(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineProcess]:
    """An engine over the fake executor, which has two clients."""
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT))
    with RunDirectory.create(short_path) as directory:
        config = replace(tiny_config(), run_dir=str(directory.path))
        made = EngineProcess(config, MemoryRecorder(), [0, 0], "fake_engine_process")
        yield made
        made.close()


def attach(process: EngineProcess, client_index: int = 1) -> AttachedLink:
    route = Route(client_index, process.config.engine_index, process.config.generation)
    return AttachedLink(route, process.pid, process.config.run_dir, MemoryRecorder())


async def facts_of(process: EngineProcess) -> EngineFacts:
    while (facts := process.facts()) is None:
        await asyncio.sleep(0.01)
    return facts


def test_an_attached_client_is_served_once_it_is_told_the_facts(process: EngineProcess) -> None:
    async def run() -> tuple[EngineFacts, list[int]]:
        links = [attach(process, index) for index in range(2)]
        clients = [AsyncMPClient(link) for link in links]
        facts = await facts_of(process)
        with pytest.raises(StartupError, match=r"EngineCore_DP0 was not ready within 0\.1 s"):
            await clients[1].ready(0.1)
        for link in links:
            link.serves(facts)
        for client in clients:
            await client.ready(20)
        assert await clients[1].ready(0) == facts, "the start of a server may ask for what was let in before"
        await clients[1].add_request(make_request("mine", [1, 2, 3], 4, client_index=0))
        tokens: list[int] = []
        while len(tokens) < 4:
            tokens += (await clients[1].get_output()).new_token_ids
        for client in clients:
            client.shutdown(0)
        return clients[1].facts, tokens

    facts, tokens = asyncio.run(run())
    assert (facts.pid, tokens) == (process.pid, expected_output([1, 2, 3], 4))
    assert process.exit_cause is None, "a client that leaves ends no engine"


def test_the_end_of_the_engine_is_what_the_launcher_says(process: EngineProcess) -> None:
    async def run() -> str | None:
        link = attach(process)
        client = AsyncMPClient(link)
        link.serves(await facts_of(process))
        await client.ready(20)
        link.ended("EngineCore_DP0 was killed by SIGKILL")
        link.ended("and again")
        for call in (client.get_output(), client.add_request(make_request("mine", [1], 1))):
            with pytest.raises(EngineDeadError, match=r"^EngineCore_DP0 was killed by SIGKILL$"):
                await call
        cause = client.dead_cause
        client.shutdown(0)
        return cause

    assert asyncio.run(run()) == "EngineCore_DP0 was killed by SIGKILL"


def test_an_engine_that_cannot_be_sent_to_counts_as_gone_before_anybody_says_so(process: EngineProcess) -> None:
    link = attach(process)
    with pytest.raises(EngineDeadError, match="not connected"):
        link.send([b"x"])
    assert link.exit_cause == "EngineCore_DP0 is not connected"
    assert link.give_up_lost(60.0) is None, "the launcher has time to tell why"
    told: list[str] = []
    link.on_exit(told.append)
    link.ended("EngineCore_DP0 exited with code 3")
    link.on_exit(told.append)
    assert told == ["EngineCore_DP0 exited with code 3"] * 2
    assert link.give_up_lost(0.0) is None, "it has told"
    with pytest.raises(StartupError, match="exited with code 3"):
        link.try_ready()
    link.close()


def test_an_engine_that_cannot_be_sent_to_and_whose_end_nobody_tells_is_given_up(process: EngineProcess) -> None:
    link = attach(process)
    told: list[str] = []
    link.on_exit(told.append)
    assert link.give_up_lost(0.0) is None
    with pytest.raises(EngineDeadError):
        link.send([b"x"])
    assert link.give_up_lost(0.0) == "EngineCore_DP0 is not connected"
    assert told == ["EngineCore_DP0 is not connected"]
    link.close()

"""Several engines behind one client: who gets what, and what the death of one does to the others."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from fake_engine import FakeEngine, balanced
from fake_executor import expected_output, make_request, tiny_config
from in_loop import in_loop

from vllm_obs.engine import client_async
from vllm_obs.engine.absent_engine import AbsentEngine
from vllm_obs.engine.balancer import make_balancer
from vllm_obs.engine.client_async import AsyncMPClient
from vllm_obs.engine.client_dp import DPLBAsyncMPClient, engine_indices
from vllm_obs.engine.config import ParallelConfig
from vllm_obs.engine.errors import EngineDeadError, EngineLostError, RequestFailedError, StartupError
from vllm_obs.engine.messages import EngineCoreOutputs, EngineCoreRequest, FinishReason, SamplingSpec
from vllm_obs.engine.run_dir import RunDirectory

FAKE_ENGINE = "fake_engine_process"
START_SECONDS = 60.0
KILLED = "EngineCore_DP1 was killed by SIGKILL"


def engines(number: int = 2) -> list[FakeEngine]:
    made = [FakeEngine(lambda request: [30] * 1000, engine_index=index) for index in range(number)]
    for engine in made:
        engine.go.clear()
    return made


def request(request_id: str, sequence_index: int = 0, submitted_at: int = 0) -> EngineCoreRequest:
    made = make_request(request_id, [1, 2, 3], max_tokens=4)
    spec: SamplingSpec = made.sampling._replace(sequence_index=sequence_index)
    return made._replace(sampling=spec, submitted_at=submitted_at)


def ids(engine: FakeEngine) -> list[str]:
    return [request.request_id for request in engine.added]


def close(*engines: FakeEngine) -> None:
    for engine in engines:
        engine.shutdown()


@in_loop
async def test_requests_spread_over_engines_and_go_where_others_have_ended() -> None:
    one, other = engines()
    client = balanced(one, other)
    for number in range(6):
        await client.add_request(request(f"r{number}"))
    assert (len(one.added), len(other.added)) == (3, 3)
    one.go.set()
    num_ended = 0
    while num_ended < 3:
        num_ended += sum(reason >= 0 for reason in (await client.get_output()).finish_reasons)
    for number in range(3):
        await client.add_request(request(f"s{number}"))
    assert ids(one)[3:] == ["s0", "s1", "s2"]
    close(one, other)


@in_loop
async def test_the_sequences_of_a_request_stay_together_up_to_as_many_as_run_at_once() -> None:
    one, other = engines()
    client = DPLBAsyncMPClient([one, other], make_balancer("least_loaded", 0), num_together=4)  # type: ignore[list-item]
    for index in range(8):
        await client.add_request(request(f"a-{index}", index))
        await client.add_request(request(f"b-{index}", index))
    for engine in (one, other):
        assert sorted(map(len, (ids(engine),))) == [8]
        for name in "ab":
            mine = [int(one.partition("-")[2]) for one in ids(engine) if one.startswith(name)]
            assert mine in ([0, 1, 2, 3], [4, 5, 6, 7])
    close(one, other)


@in_loop
async def test_aborts_go_to_the_engine_that_has_the_sequence() -> None:
    one, other = engines()
    client = balanced(one, other)
    for number in range(4):
        await client.add_request(request(f"r{number}"))
    await client.abort_requests(["r0", "r1", "r2", "r3", "nobody"], FinishReason.STOP)
    assert (sorted(one.aborted), sorted(other.aborted)) == (sorted(ids(one)), sorted(ids(other)))
    assert [place.open_ids for place in client.places] == [{}, {}]
    await client.abort_requests(["r0"])  # twice changes nothing
    assert len(one.aborted) + len(other.aborted) == 4
    close(one, other)


@in_loop
async def test_a_sequence_that_is_aborted_while_it_waits_to_be_sent_does_not_run_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (engine,) = engines(1)
    client, has_room, add = balanced(engine), asyncio.Event(), engine.add_request

    async def add_when_there_is_room(request: EngineCoreRequest) -> None:
        await has_room.wait()
        await add(request)

    monkeypatch.setattr(engine, "add_request", add_when_there_is_room)
    sending = asyncio.create_task(client.add_request(request("r0")))
    await asyncio.sleep(0)
    await client.abort_requests(["r0"])  # there is nothing to abort yet
    assert (engine.aborted, client.places[0].open_ids) == ([], {})
    has_room.set()
    await sending
    assert (ids(engine), engine.aborted, engine.num_running) == (["r0"], ["r0"], 0)
    close(engine)


@in_loop
async def test_the_death_of_one_is_told_in_its_turn_and_the_others_go_on() -> None:
    one, other = engines()
    client = balanced(one, other)
    for number in range(4):
        await client.add_request(request(f"r{number}"))
    lost = ids(other)
    other.die(KILLED)
    assert (client.dead_cause, client.place(1).is_up) == (None, False)
    await client.add_request(request("r4"))  # before anybody has read of it
    with pytest.raises(EngineLostError, match="SIGKILL") as caught:
        await client.get_output()
    assert (caught.value.engine_index, caught.value.request_ids) == (1, lost)
    await client.abort_requests(lost)
    assert other.aborted == []
    for number in range(5, 8):
        await client.add_request(request(f"r{number}"))
    assert len(one.added) == 6
    one.go.set()
    outputs = await client.get_output()
    assert outputs.engine_index == 0
    close(one, other)


@in_loop
async def test_another_takes_the_place_of_the_dead_one() -> None:
    one, other = engines()
    client = balanced(one, other)
    for number in range(4):
        await client.add_request(request(f"r{number}"))
    other.die(KILLED)
    with pytest.raises(EngineLostError):
        await client.get_output()
    second = other.successor()
    second.go.clear()
    client.let_in(second)  # type: ignore[arg-type]
    assert (client.place(1).is_up, client.place(1).load.cost) == (True, 0)
    other.say(outputs_of(request("r1"), other))  # of the life that is over
    await client.add_request(request("r4"))
    await client.add_request(request("r5"))
    assert ids(second) == ["r4", "r5"]
    second.go.set()
    assert (await client.get_output()).request_ids == ["r4"]
    close(one, other, second)


def outputs_of(request: EngineCoreRequest, engine: FakeEngine) -> EngineCoreOutputs:
    """A row of that request."""
    said: list[EngineCoreOutputs] = []
    engine_said, engine.say = engine.say, said.append  # type: ignore[method-assign]
    engine._send(request, [5], None, 0)
    engine.say = engine_said  # type: ignore[method-assign]
    return said[0]


@in_loop
async def test_without_any_engine_there_is_a_cause_and_nothing_can_be_sent() -> None:
    (one,) = engines(1)
    client = balanced(one)
    await client.add_request(request("r0"))
    one.die("killed")
    for _ in range(2):
        with pytest.raises(EngineDeadError, match="killed"):
            await client.add_request(request("r1"))
    with pytest.raises(EngineDeadError, match="killed"):
        await client.call_utility("ping")
    with pytest.raises(EngineLostError, match="killed"):
        await client.get_output()
    assert client.dead_cause == "killed"
    client.shutdown()
    with pytest.raises(EngineDeadError):
        await client.get_output()


@in_loop
async def test_an_absent_engine_is_not_waited_for_and_gets_nothing_until_it_is_let_in() -> None:
    one, other = engines()
    client = DPLBAsyncMPClient([one, AbsentEngine(1)], make_balancer("least_loaded", 0))  # type: ignore[list-item]
    assert await client.ready(5) == [one.facts]
    for number in range(4):
        await client.add_request(request(f"r{number}"))
    await client.abort_requests([])
    await client.call_utility("ping")
    assert (len(one.added), client.place(1).is_up, client.dead_cause) == (4, False, None)
    client.adopt(other)  # type: ignore[arg-type]
    client.let_in(other)  # type: ignore[arg-type]
    await client.add_request(request("r4"))
    assert (ids(other), client.engines) == (["r4"], [one.facts, other.facts])
    client.shutdown()
    close(one, other)


@in_loop
async def test_where_all_are_absent_the_first_that_is_let_in_is_enough() -> None:
    one, other = engines()
    absent = [AbsentEngine(0), AbsentEngine(1)]
    client = DPLBAsyncMPClient(absent, make_balancer("least_loaded", 0))
    with pytest.raises(StartupError, match=r"no engine was there within 0\.01 s"):
        await client.ready(0.01)
    assert (client.dead_cause, client.engines, client.num_dropped) == ("EngineCore_DP0 is not there yet", [], {})
    with pytest.raises(EngineDeadError, match="not there yet"):
        await client.add_request(request("r0"))
    ready = asyncio.ensure_future(client.ready(5))
    await asyncio.sleep(0)
    client.let_in(other)  # type: ignore[arg-type]
    assert await ready == [other.facts]
    client.shutdown()
    close(one, other)


@in_loop
async def test_one_that_ails_gets_nothing_while_another_is_well() -> None:
    one, other = engines()
    client = balanced(one, other)
    client.place(1).ailment = "stalled"
    for number in range(4):
        await client.add_request(request(f"r{number}"))
    assert (len(one.added), len(other.added)) == (4, 0)
    client.place(0).ailment = "broken"
    await client.add_request(request("r4"))
    assert ids(other) == ["r4"]
    close(one, other)


@in_loop
async def test_calls_go_to_all_and_those_that_ask_for_nothing_too() -> None:
    one, other = engines()
    one.utility_answers = {"is_profiling": True, "reset_prefix_cache": True}
    other.utility_answers = {"is_profiling": False, "reset_prefix_cache": False}
    client = balanced(one, other)
    assert await client.call_utility("is_profiling") is True
    assert await client.call_utility("reset_prefix_cache") is False
    assert one.utility_calls == other.utility_calls
    await client.abort_requests(())
    close(one, other)


@in_loop
async def test_engines_that_are_given_up_are_lost_though_they_live() -> None:
    one, other = engines()
    client = balanced(one, other)
    for number in range(2):
        await client.add_request(request(f"r{number}"))
    client.give_up("nobody reads")
    assert client.dead_cause == "nobody reads"
    lost = []
    for _ in range(2):
        with pytest.raises(EngineLostError, match="nobody reads") as caught:
            await client.get_output()
        lost += caught.value.request_ids
    assert sorted(lost) == ["r0", "r1"]
    one.die("ended at last")
    client.let_in(other.successor())  # type: ignore[arg-type]
    await client.add_request(request("r2"))
    assert (await client.get_output()).request_ids == ["r2"], "its end has been told"
    client.shutdown()


def test_a_server_runs_all_engines_or_its_own() -> None:
    assert engine_indices(ParallelConfig(data_parallel_size=3)) == [0, 1, 2]
    assert engine_indices(ParallelConfig(data_parallel_size=3, data_parallel_rank=2)) == [2]


@pytest.fixture
def run_dir(run_base: Path, child_modules: None) -> Iterator[Path]:
    with RunDirectory.create() as directory:
        yield directory.path


@asynccontextmanager
async def launched(run_dir: Path) -> AsyncIterator[DPLBAsyncMPClient]:
    """Two real engine processes over the fake executor."""
    config = replace(tiny_config(), run_dir=str(run_dir), parallel=ParallelConfig(data_parallel_size=2))
    client = DPLBAsyncMPClient.launch(config, module=FAKE_ENGINE)
    try:
        await client.ready(START_SECONDS)
        async with asyncio.timeout(START_SECONDS):
            yield client
    finally:
        client.shutdown()
    assert list(run_dir.glob("*.sock")) == []


async def ended(client: DPLBAsyncMPClient, number: int) -> dict[str, list[int]]:
    """The tokens of sequences, once so many have ended."""
    tokens: dict[str, list[int]] = {}
    while number:
        outputs = await client.get_output()
        start = 0
        rows = zip(outputs.request_ids, outputs.num_new_tokens, outputs.finish_reasons, strict=True)
        for request_id, num_tokens, reason in rows:
            tokens.setdefault(request_id, []).extend(outputs.new_token_ids[start : start + num_tokens])
            start += num_tokens
            number -= reason >= 0
    return tokens


def test_processes_serve_die_alone_and_are_replaced(run_dir: Path) -> None:
    async def body() -> None:
        async with launched(run_dir) as client:
            assert [facts.engine_index for facts in client.engines] == [0, 1]
            for number in range(8):
                await client.add_request(make_request(f"r{number}", [number, 1, 2], max_tokens=6))
            expected = {f"r{number}": expected_output([number, 1, 2], 6) for number in range(8)}
            assert await ended(client, 8) == expected
            assert await client.call_utility("ping") == "pong"
            os.kill(client.place(1).facts.pid, signal.SIGKILL)
            with pytest.raises(EngineLostError, match=KILLED) as caught:
                await client.get_output()
            assert (caught.value.engine_index, caught.value.request_ids) == (1, [])
            await client.add_request(make_request("alone", [1, 2], max_tokens=3))
            assert await ended(client, 1) == {"alone": expected_output([1, 2], 3)}
            dead = client.place(1).client
            dead.shutdown(0)
            after = dead.successor()
            await after.ready(START_SECONDS)
            client.let_in(after)
            assert (after.generation, after.engine_index, client.place(1).is_up) == (1, 1, True)
            await client.add_request(make_request("a", [1, 2], max_tokens=3))
            await client.add_request(make_request("b", [1, 3], max_tokens=3))
            assert [len(place.open_ids) for place in client.places] == [1, 1]
            assert set(await ended(client, 2)) == {"a", "b"}

    asyncio.run(body())


def test_where_one_cannot_start_none_is_left(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    monkeypatch.setenv("VLLM_OBS_TEST_HOOKS", "1")
    monkeypatch.setenv("VLLM_OBS_TEST_FAULTS", "engine_start=exit:9")

    async def body() -> None:
        with pytest.raises(StartupError, match="exited with code 9"):
            async with launched(run_dir):
                raise AssertionError("it is ready")

    asyncio.run(body())
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_outputs_that_nobody_takes_hold_up_each_engine_for_itself(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_async, "MAX_WAITING_OUTPUTS", 8)

    async def body() -> None:
        async with launched(run_dir) as client:
            await client.add_request(make_request("a", [1, 2], max_tokens=50))
            await client.add_request(make_request("b", [1, 3], max_tokens=50))
            async with asyncio.timeout(20):
                while client._said.qsize() < 16:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)
            assert [engine._num_waiting for engine in client.clients] == [8, 8]
            tokens = await ended(client, 2)
            assert tokens == {"a": expected_output([1, 2], 50), "b": expected_output([1, 3], 50)}

    asyncio.run(body())


async def flood(engine: AsyncMPClient) -> None:
    """More than its queue can take."""
    for number in range(100_000):
        await engine.add_request(make_request(f"f{number}", list(range(60))))


def test_an_engine_whose_queue_is_full_refuses_and_the_others_hear_of_aborts(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_async, "SEND_TIMEOUT_MS", 100)

    async def body() -> None:
        async with launched(run_dir) as client:
            stopped = client.place(1).facts.pid
            os.kill(stopped, signal.SIGSTOP)
            with pytest.raises(RequestFailedError, match="queue is full"):
                await flood(client.place(1).client)
            client.place(1).ailment = "stalled"
            await client.add_request(make_request("a", [1, 2], max_tokens=60))
            client.place(1).open_ids["x"] = None
            client._owners["x"] = client.place(1)
            with pytest.raises(RequestFailedError, match="queue is full"):
                await client.abort_requests(["x", "a"])
            assert (await ended(client, 1)).keys() == {"a"}
            os.kill(stopped, signal.SIGCONT)

    asyncio.run(body())

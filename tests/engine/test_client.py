"""Clients: the same engine in this process, behind a blocking client, and behind an event loop."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import uvloop
from fake_engine_process import make_fake_core
from fake_executor import expected_output, make_request, tiny_config

from vllm_obs.engine import client_async, process
from vllm_obs.engine.client_async import AsyncMPClient
from vllm_obs.engine.client_inproc import InprocClient
from vllm_obs.engine.client_sync import SyncMPClient
from vllm_obs.engine.errors import EngineDeadError, RequestFailedError, StartupError
from vllm_obs.engine.messages import EngineCoreOutputs, FinishReason

pytestmark = pytest.mark.usefixtures("child_modules", "run_base")

FAKE_ENGINE = "fake_engine_process"
START_SECONDS = 60.0
PROMPT = [1, 2, 3]


class Collected:
    """Tokens and endings by request id."""

    def __init__(self) -> None:
        self.tokens: dict[str, list[int]] = {}
        self.endings: dict[str, FinishReason] = {}

    def take(self, outputs: EngineCoreOutputs) -> None:
        start = 0
        columns = zip(outputs.request_ids, outputs.num_new_tokens, outputs.finish_reasons, strict=True)
        for request_id, num_tokens, reason in columns:
            row = outputs.new_token_ids[start : start + num_tokens]
            self.tokens.setdefault(request_id, []).extend(row)
            start += num_tokens
            if reason >= 0:
                self.endings[request_id] = FinishReason(reason)


def run_blocking(client: InprocClient | SyncMPClient, num_endings: int) -> Collected:
    collected = Collected()
    while len(collected.endings) < num_endings:
        outputs = client.get_output()
        if outputs is not None:
            collected.take(outputs)
    return collected


@pytest.fixture(params=["inproc", "sync"])
def blocking(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client without an event loop."""
    if request.param == "inproc":
        monkeypatch.setattr(process, "make_core", make_fake_core)
        client: Any = InprocClient(tiny_config(max_model_len=8192))
    else:
        client = SyncMPClient(tiny_config(max_model_len=8192), module=FAKE_ENGINE)
    yield client
    client.shutdown()
    client.shutdown()


def test_a_blocking_client_serves_and_aborts(blocking: Any) -> None:
    blocking.add_request(make_request("a", PROMPT, max_tokens=5))
    endless = make_request("b", PROMPT, max_tokens=5000, client_index=7, generation=9)
    blocking.add_request(endless)
    blocking.abort_requests(["b"], FinishReason.STOP)
    collected = run_blocking(blocking, 2)
    assert collected.tokens["a"] == expected_output(PROMPT, 5)
    assert collected.endings == {"a": FinishReason.LENGTH, "b": FinishReason.STOP}


def test_a_blocking_client_calls_utilities_while_outputs_wait(blocking: Any) -> None:
    blocking.add_request(make_request("a", PROMPT, max_tokens=3))
    assert blocking.call_utility("ping") == "pong"
    assert run_blocking(blocking, 1).tokens["a"] == expected_output(PROMPT, 3)
    with pytest.raises(Exception, match="no_such"):
        blocking.call_utility("no_such")


def test_a_blocking_client_knows_the_facts(blocking: Any) -> None:
    assert (blocking.facts.model, blocking.facts.num_gpu_blocks) == ("fake", 64)
    assert blocking.dead_cause is None


def test_the_inproc_client_has_nothing_to_say_without_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "make_core", make_fake_core)
    assert InprocClient(tiny_config()).get_output() is None


def test_the_sync_client_has_a_deadline_and_sees_death() -> None:
    client = SyncMPClient(tiny_config(), module=FAKE_ENGINE)
    try:
        with pytest.raises(TimeoutError):
            client.get_output(timeout_seconds=0.2)
        client.add_request(make_request("a", PROMPT))
        os.kill(client.facts.pid, signal.SIGKILL)
        begun = time.monotonic()
        with pytest.raises(EngineDeadError, match="EngineCore_DP0 was killed by SIGKILL"):
            run_blocking(client, 2)
        assert time.monotonic() - begun < 3.0
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            client.call_utility("ping")
        assert client.dead_cause == "EngineCore_DP0 was killed by SIGKILL"
    finally:
        client.shutdown()


def test_a_client_whose_engine_cannot_start_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    monkeypatch.setenv("VLLM_OBS_TEST_HOOKS", "1")
    monkeypatch.setenv("VLLM_OBS_TEST_FAULTS", "engine_start=exit:9")
    with pytest.raises(StartupError, match="EngineCore_DP0 exited with code 9"):
        SyncMPClient(tiny_config(), module=FAKE_ENGINE)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


Body = Callable[[AsyncMPClient], Awaitable[None]]


@pytest.fixture(params=["asyncio", "uvloop"])
def on_loop(request: pytest.FixtureRequest) -> Callable[[Body], None]:
    """Runs `body(client)` on an event loop of either kind, with a client that was launched before the loop."""

    def run(body: Body) -> None:
        client = AsyncMPClient.launch(tiny_config(), module=FAKE_ENGINE)

        async def main() -> None:
            await client.ready(START_SECONDS)
            async with asyncio.timeout(START_SECONDS):
                await body(client)

        factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
        try:
            with asyncio.Runner(loop_factory=factory) as runner:
                runner.run(main())
        finally:
            client.shutdown()
            client.shutdown()

    return run


async def run_on_loop(client: AsyncMPClient, num_endings: int) -> Collected:
    collected = Collected()
    while len(collected.endings) < num_endings:
        collected.take(await client.get_output())
    return collected


def test_the_async_client_serves_calls_and_aborts(on_loop: Callable[[Body], None]) -> None:
    async def body(client: AsyncMPClient) -> None:
        for index in range(8):
            await client.add_request(make_request(f"r{index}", [index, 1, 2], max_tokens=6))
        await client.add_request(make_request("long", PROMPT, max_tokens=60))
        await client.abort_requests(["long"])
        assert await client.call_utility("ping") == "pong"
        collected = await run_on_loop(client, 9)
        for index in range(8):
            assert collected.tokens[f"r{index}"] == expected_output([index, 1, 2], 6)
        assert collected.endings["long"] == FinishReason.ABORT
        with pytest.raises(RequestFailedError, match="no_such"):
            await client.call_utility("no_such")

    on_loop(body)


def test_a_call_that_an_engine_does_not_answer_is_told_as_a_stall(
    on_loop: Callable[[Body], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_async, "UTILITY_TIMEOUT_SECONDS", 0.2)

    async def body(client: AsyncMPClient) -> None:
        os.kill(client.facts.pid, signal.SIGSTOP)
        try:
            with pytest.raises(RequestFailedError, match=r"did not answer ping within 0.2 s") as raised:
                await client.call_utility("ping")
        finally:
            os.kill(client.facts.pid, signal.SIGCONT)
        assert raised.value.reason == "stalled"

    on_loop(body)


def test_the_async_client_fails_every_pending_call_when_the_engine_dies(on_loop: Callable[[Body], None]) -> None:
    async def body(client: AsyncMPClient) -> None:
        os.kill(client.facts.pid, signal.SIGSTOP)
        waiting = [
            asyncio.create_task(client.get_output()),
            *[asyncio.create_task(client.call_utility("ping")) for _ in range(3)],
        ]
        await asyncio.sleep(0.1)
        os.kill(client.facts.pid, signal.SIGKILL)
        begun = time.monotonic()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert time.monotonic() - begun < 3.0
        cause = "EngineCore_DP0 was killed by SIGKILL"
        assert [(type(result), str(result)) for result in results] == [(EngineDeadError, cause)] * 4
        assert client.dead_cause == cause
        for call in (client.get_output(), client.add_request(make_request("a", PROMPT)), client.call_utility("x")):
            with pytest.raises(EngineDeadError, match="SIGKILL"):
                await call

    on_loop(body)


def test_what_the_engine_said_before_it_died_is_still_handed_out(on_loop: Callable[[Body], None]) -> None:
    async def body(client: AsyncMPClient) -> None:
        await client.add_request(make_request("a", PROMPT, max_tokens=6))
        await asyncio.sleep(0.5)
        os.kill(client.facts.pid, signal.SIGKILL)
        await asyncio.sleep(0.5)
        collected = await run_on_loop(client, 1)
        assert collected.tokens["a"] == expected_output(PROMPT, 6)
        with pytest.raises(EngineDeadError):
            await client.get_output()

    on_loop(body)


def test_an_engine_that_does_not_read_never_blocks_the_loop(
    on_loop: Callable[[Body], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_async, "SEND_TIMEOUT_MS", 300)

    async def flood(client: AsyncMPClient) -> None:
        for index in range(100_000):
            await client.add_request(make_request(f"r{index}", list(range(60))))
            if index % 50 == 0:
                await asyncio.sleep(0)

    async def body(client: AsyncMPClient) -> None:
        os.kill(client.facts.pid, signal.SIGSTOP)
        flooding = asyncio.create_task(flood(client))
        longest, last = 0.0, time.monotonic()
        while not flooding.done():
            await asyncio.sleep(0.001)
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
        with pytest.raises(RequestFailedError, match="the engine's queue is full"):
            await flooding
        assert longest < 0.5
        os.kill(client.facts.pid, signal.SIGCONT)

    on_loop(body)


def test_outputs_that_nobody_takes_wait_in_bounds_and_are_all_there(
    on_loop: Callable[[Body], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_async, "MAX_WAITING_OUTPUTS", 8)

    async def body(client: AsyncMPClient) -> None:
        await client.add_request(make_request("a", PROMPT, max_tokens=50))
        await asyncio.sleep(0.5)
        assert client._outputs.qsize() == 8
        collected = await run_on_loop(client, 1)
        assert collected.tokens["a"] == expected_output(PROMPT, 50)

    on_loop(body)


def test_shutting_down_ends_who_waits(on_loop: Callable[[Body], None]) -> None:
    async def body(client: AsyncMPClient) -> None:
        waiting = asyncio.create_task(client.get_output())
        await asyncio.sleep(0.05)
        client.shutdown()
        with pytest.raises(EngineDeadError, match="the engine was shut down"):
            await waiting
        assert client.dead_cause is None

    on_loop(body)


def test_a_client_that_is_not_ready_in_time_says_so() -> None:
    client = AsyncMPClient.launch(tiny_config(), module=FAKE_ENGINE)
    try:
        with pytest.raises(StartupError, match=r"was not ready within 0.01 s"):
            asyncio.run(client.ready(0.01))
    finally:
        client.shutdown()


def test_an_engine_that_ends_after_it_said_ready_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    client = AsyncMPClient.launch(tiny_config(), module=FAKE_ENGINE)
    try:
        client._link.child.wait_for("READY", START_SECONDS)
        os.kill(client._link.child.pid, signal.SIGKILL)
        assert client._link.child.wait(START_SECONDS)
        monkeypatch.setattr(client._link.sockets, "_take_hello", lambda: False)
        with pytest.raises(StartupError, match="killed by SIGKILL"):
            asyncio.run(client.ready())
    finally:
        client.shutdown()


def test_the_clients_of_processes_load_no_torch() -> None:
    script = (
        "import sys; import vllm_obs.engine.process; "
        "from vllm_obs.engine import client_async, client_inproc, client_sync; "
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"

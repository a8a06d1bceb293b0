"""The demo's parts: its options, the port it takes, its load, and ranks that always go on again."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
from serving import free_port

from vllm_obs.cli.demo import (
    EXIT_LOAD_FAILED,
    DemoLoad,
    bind_demo_port,
    engine_args,
    greeting,
    main,
    server_config,
)
from vllm_obs.cli.demo_load import MAX_OPEN_REQUESTS, RegimeLoad, body_of, owned_by
from vllm_obs.cli.demo_options import DemoOptions, demo_options
from vllm_obs.cli.demo_ranks import rank_processes, resume_ranks, stopped
from vllm_obs.cli.listener import bind_port
from vllm_obs.engine.errors import ConfigError, StartupError
from vllm_obs.engine.synthetic.regimes import REGIMES, SYNTHETIC_LIMITS, Arrival, Regime, Stream

ME = psutil.Process().pid
NOBODY = 2**22 - 1


def regime(*streams: Stream, stall_every: float = 0.0, stall: float = 0.0) -> Regime:
    return Regime("quick", "a load for tests", streams, stall_every, stall)


QUICK = Stream(0.02, (4, 8), (1, 2), is_regular=True)


def test_options_have_defaults_and_bounds() -> None:
    assert demo_options([]) == DemoOptions("127.0.0.1", None, None, "all", 0, 30.0, 2)
    assert demo_options([]).regimes == tuple(REGIMES)
    words = "--regime kv_pressure --seed 3 --period 12 --ranks 1 --port 0 --inspect_port 9"
    typed = demo_options(words.split(" "))
    assert typed == DemoOptions(port=0, inspect_port=9, regime="kv_pressure", seed=3, period=12.0, ranks=1)
    assert typed.regimes == ("kv_pressure",)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("--regime busy", "is not one of all, calm, kv_pressure"),
        ("--period 9", "--period 9 is not between 10 and 3600"),
        ("--ranks 0", "--ranks 0 is not between 1 and 8"),
        ("--engines 9", "--engines 9 is not between 1 and 8"),
        ("--api-servers 0", "--api-servers 0 is not between 1 and 8"),
        ("--seed -1", "--seed -1 is not between 0 and"),
        ("--port 70000", "--port 70000 is not between 0 and 65535"),
        ("--regimes calm", "nearest: --regime"),
    ],
)
def test_other_options_are_refused_in_one_line(argv: str, said: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        demo_options(argv.split())
    assert said in str(refusal.value)


def test_the_engine_has_the_size_the_regimes_are_made_for() -> None:
    config = engine_args(DemoOptions(ranks=3)).create_engine_config()
    assert (
        config.cache.num_gpu_blocks_override,
        config.cache.block_size,
        config.scheduler.max_num_seqs,
        config.scheduler.max_num_batched_tokens,
        config.model.max_model_len,
    ) == SYNTHETIC_LIMITS
    assert (config.parallel.world_size, config.parallel.distributed_executor_backend) == (3, "mp")
    assert server_config(DemoOptions(port=1)).stall_timeout < min(
        each.stall_seconds for each in REGIMES.values() if each.stall_seconds
    )
    assert all(name in greeting(DemoOptions()) for name in REGIMES)


def test_engines_and_api_servers_are_as_many_as_asked_for() -> None:
    options = demo_options(["--engines", "2", "--api-servers", "3", "--ranks", "2", "--port", "1"])
    config = engine_args(options).create_engine_config()
    assert (config.parallel.data_parallel_size, config.parallel.world_size) == (2, 2)
    assert server_config(options).api_server_count == 3
    assert "3 API servers, Observer, 2 engines, each with 2 rank(s)" in greeting(options)


def test_a_taken_port_is_refused_only_where_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setattr("vllm_obs.cli.demo.DEFAULT_PORT", port)
    with bind_demo_port(DemoOptions()) as first:
        assert first.getsockname()[1] == port
        with bind_demo_port(DemoOptions()) as second:
            assert second.getsockname()[1] not in (0, port)
        with pytest.raises(ConfigError, match="is in use"):
            bind_demo_port(DemoOptions(port=port))
    bind_port("127.0.0.1", port).close()


def test_a_load_sends_every_arrival_and_counts_what_became_of_it() -> None:
    bodies: list[dict[str, Any]] = []

    async def complete(body: dict[str, Any]) -> str:
        bodies.append(body)
        if len(bodies) == 1:
            raise ConnectionError
        return "HTTP 503: no" if len(bodies) == 2 else ""

    load = RegimeLoad(regime(QUICK), complete, NOBODY)
    asyncio.run(load.run(seed=1, round_number=0, seconds=0.19))
    assert (load.num_answered, load.num_failed, load.num_cut_off, load.num_left_out) == (8, 2, 0, 0)
    again = RegimeLoad(regime(QUICK), complete, NOBODY)
    first, bodies = bodies, []
    asyncio.run(again.run(seed=1, round_number=0, seconds=0.19))
    assert bodies == first


def test_what_does_not_end_is_cut_off_and_what_is_too_much_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm_obs.cli.demo_load.GRACE_SECONDS", 0.05)

    async def complete(body: dict[str, Any]) -> str:
        await asyncio.sleep(3600)
        return ""

    crowd = Stream(1e9, (4, 8), (1, 2), burst=(MAX_OPEN_REQUESTS + 5,) * 2)
    load = RegimeLoad(regime(crowd), complete, NOBODY)
    asyncio.run(load.run(seed=1, round_number=0, seconds=0.1))
    assert (load.num_answered, load.num_cut_off, load.num_left_out) == (0, MAX_OPEN_REQUESTS, 5)


def test_a_body_asks_for_exactly_what_arrives() -> None:
    body = body_of(Arrival(0.0, 70, 9, "system", ""), 4)
    assert (len(body["prompt"]), body["max_tokens"], body["seed"], body["stream"]) == (70, 9, 4, False)
    assert body_of(Arrival(0.0, 70, 9, "system", ""), 3)["stream"]


@pytest.fixture
def ranks() -> Iterator[list[psutil.Process]]:
    """Two processes that are called like ranks, and one that is not."""
    script = [sys.executable, "-c", "import time; time.sleep(60)"]
    started = [subprocess.Popen([*script, name]) for name in ("Worker_TP1", "Worker_TP0", "EngineCore_DP0")]
    try:
        yield [psutil.Process(started[1].pid), psutil.Process(started[0].pid)]
    finally:
        for process in started:
            process.kill()
            process.wait(10)


def test_ranks_are_found_in_order_and_go_on_after_the_block(ranks: list[psutil.Process]) -> None:
    assert rank_processes(ME) == ranks
    with stopped(ranks[1]):
        await_stopped(ranks[1])
    assert not is_stopped(ranks[1])
    assert rank_processes(NOBODY) == []


def test_what_a_dead_load_left_stopped_goes_on(ranks: list[psutil.Process]) -> None:
    ranks[0].suspend()
    await_stopped(ranks[0])
    resume_ranks(ME)
    assert not is_stopped(ranks[0])


def test_a_stall_stops_the_last_rank_and_ends_with_the_load(
    ranks: list[psutil.Process], capsys: pytest.CaptureFixture[str]
) -> None:
    async def complete(body: dict[str, Any]) -> str:
        return ""

    async def cancel_in_a_stall() -> None:
        load = RegimeLoad(regime(QUICK, stall_every=0.3, stall=20.0), complete, ME)
        running = asyncio.create_task(load.run(0, 0, 30.0))
        deadline = time.monotonic() + 10
        while not is_stopped(ranks[1]) and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        assert is_stopped(ranks[1])
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(cancel_in_a_stall())
    assert not is_stopped(ranks[1])
    assert not is_stopped(ranks[0])
    assert f"Worker_TP1 (pid {ranks[1].pid}) is stopped now, for 20 s" in capsys.readouterr().out


def test_a_load_knows_no_other_root_than_the_process_that_started_it() -> None:
    assert owned_by(os.getppid()) == os.getppid()
    for pid in (1, NOBODY, ME):
        if pid != os.getppid():
            with pytest.raises(StartupError, match=f"process {pid}, which started this load, is gone"):
                owned_by(pid)


def test_a_load_that_dies_before_the_server_hears_signals_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    children: list[FakeLoad] = []

    def spawn(module: str, title: str, configuration: dict[str, Any]) -> FakeLoad:
        assert (title, configuration["root_pid"]) == ("DemoLoad", ME)
        children.append(FakeLoad())
        return children[-1]

    def run(*args: Any) -> int:
        """A server that takes its time to listen for signals."""
        dying = threading.Thread(target=children[0].die)
        dying.start()
        time.sleep(0.2)
        heard = threading.Event()
        before = signal.signal(signal.SIGTERM, lambda *_: heard.set())
        try:
            assert heard.wait(10)
        finally:
            signal.signal(signal.SIGTERM, before)
        dying.join(10)
        return 0

    monkeypatch.setattr("vllm_obs.cli.demo.spawn", spawn)
    monkeypatch.setattr("vllm_obs.cli.demo._set_title", lambda options: None)
    monkeypatch.setattr("vllm_obs.server.serve.run", run)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert main(["--port", "0"]) == EXIT_LOAD_FAILED


def test_a_load_that_dies_under_a_server_that_never_began_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    child = FakeLoad()
    monkeypatch.setattr("vllm_obs.cli.demo.spawn", lambda *_: child)
    load = DemoLoad(DemoOptions())
    dying = threading.Thread(target=child.die)
    dying.start()
    load.stop()
    dying.join(10)
    assert not dying.is_alive()


class FakeLoad:
    """A child that dies when it is told to."""

    def __init__(self) -> None:
        self.callback: Callable[[str], None] = print

    def on_exit(self, callback: Callable[[str], None]) -> None:
        self.callback = callback

    def stop(self, timeout_seconds: float) -> None:
        pass

    def die(self) -> None:
        self.callback("DemoLoad was killed by SIGKILL")


def await_stopped(process: psutil.Process) -> None:
    """The kernel may take a moment to stop it."""
    deadline = time.monotonic() + 10
    while not is_stopped(process):
        assert time.monotonic() < deadline, "it was not stopped"
        time.sleep(0.01)


def is_stopped(process: psutil.Process) -> bool:
    return process.status() == psutil.STATUS_STOPPED

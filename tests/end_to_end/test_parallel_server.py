"""A server whose model two shards of two stages share: every rank is seen, and one that is killed is named."""

import json
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from observed_server import NAME, ObservedServer, await_that, observed, total
from otlp_receiver import OtlpReceiver, http_receiver
from process_watch import gone

RANKS = [f"Worker_TP{shard}_PP{stage}" for stage in (0, 1) for shard in (0, 1)]
STALL_SECONDS = 3.0
LONG = {"model": NAME, "prompt": "Once", "max_tokens": 1500, "ignore_eos": True, "temperature": 0.0}


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpReceiver]:
    """Takes the server's traces."""
    with http_receiver() as made:
        yield made


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, receiver: OtlpReceiver) -> Iterator[ObservedServer]:
    parallel = ("--tensor-parallel-size", "2", "--pipeline-parallel-size", "2")
    flags = ("--otlp-traces-endpoint", f"{receiver.url}/v1/traces", "--stall-timeout", f"{STALL_SECONDS:g}")
    env = {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}
    with observed(tmp_path_factory.mktemp("tiny"), *parallel, *flags, env=env) as server:
        yield server


def test_the_process_tree_shows_every_rank(shared: ObservedServer) -> None:
    engine = shared.server.child("vllm-obs::EngineCore_DP0")
    titles = [" ".join(child.cmdline()).strip() for child in engine.children()]
    assert sorted(titles) == [f"vllm-obs::{rank}" for rank in sorted(RANKS)]


def test_ranks_keep_to_cores_of_their_own_and_listen_to_this_host_only(shared: ObservedServer) -> None:
    ranks = [shared.server.child(f"vllm-obs::{rank}") for rank in RANKS]
    affinities = [set(rank.cpu_affinity()) for rank in ranks]
    if len(os.sched_getaffinity(0)) >= len(RANKS):
        assert sum(map(len, affinities)) == len(set.union(*affinities)), "no core has two ranks"
    addresses = {place.laddr.ip for rank in ranks for place in rank.net_connections() if place.status == "LISTEN"}
    assert addresses <= {"127.0.0.1"}


def test_a_step_has_the_part_of_every_rank_and_the_laws_hold(shared: ObservedServer) -> None:
    replies: list[Any] = []

    def ask(number: int) -> None:
        prompt = f"{number} " * (3 + 40 * number)
        replies.append(shared.complete(prompt=prompt, max_tokens=24, ignore_eos=True, temperature=0.0, model=NAME))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [reply["usage"]["completion_tokens"] for reply in replies] == [24] * 8
    columns = shared.inspect("steps?limit=200")["steps"]
    steps = [shared.inspect(f"steps/{number}") for number in columns["step"][2:-2:7]]
    ran = [step for step in steps if step["planned"]["request_ids"]]
    assert ran
    for step in ran:
        assert sorted(worker["rank"] for worker in step["workers"]) == [0, 1, 2, 3]
    assert shared.broken_laws() == []


def test_one_trace_spans_every_rank(shared: ObservedServer, receiver: OtlpReceiver) -> None:
    def executed_in(received: OtlpReceiver) -> dict[int, set[str]]:
        """The roles whose `worker.execute` a trace has, for each trace."""
        found: dict[int, set[str]] = {}
        for each in received.spans():
            if each.span.name == "worker.execute":
                found.setdefault(each.trace_id, set()).add(each.resource["vllm_obs.role"])
        return found

    shared.complete(prompt="One", max_tokens=8, ignore_eos=True, temperature=0.0, model=NAME)
    receiver.await_that(lambda received: set(RANKS) in executed_in(received).values())


def test_a_rank_that_stands_still_is_named_and_its_streams_go_on_with_it(shared: ObservedServer) -> None:
    victim = shared.server.child("vllm-obs::Worker_TP1_PP0")
    body = {**LONG, "max_tokens": 400}
    with ThreadPoolExecutor(2) as pool:
        streams = [pool.submit(lambda: list(shared.server.stream("/v1/completions", body))) for _ in range(2)]
        await_that(lambda: shared.inspect("state")["requests"]["num_running"] == 2)
        victim.suspend()
        since = time.monotonic()
        try:
            (stall,) = await_that(lambda: shared.inspect("state")["stalls"]["current"])
            await_that(lambda: shared.server.request("GET", "/readyz")[0] == 503)
            assert time.monotonic() - since < 3 * (STALL_SECONDS + 1.0)
        finally:
            victim.resume()
        assert (stall["role"], stall["pid"], stall["process_state"]) == ("Worker_TP1_PP0", victim.pid, "T")
        assert "Worker_TP1_PP0 (rank 1, " in stall["says"]
        ends = [stream.result(60)[-1] for stream in streams]
    assert [end["choices"][0]["finish_reason"] for end in ends] == ["length"] * 2
    await_that(lambda: shared.server.request("GET", "/readyz")[0] == 200)


def test_a_rank_that_is_killed_is_named_and_another_engine_takes_over(shared: ObservedServer) -> None:
    """P3."""
    server = shared.server
    before = [server.child(f"vllm-obs::{rank}") for rank in RANKS]
    streams: list[list[dict[str, Any]]] = [[] for _ in range(4)]
    ended_at = [0.0] * len(streams)

    def read(number: int) -> None:
        for event in server.stream("/v1/completions", LONG):
            streams[number].append(event)
        ended_at[number] = time.monotonic()

    threads = [threading.Thread(target=read, args=(number,)) for number in range(len(streams))]
    for thread in threads:
        thread.start()
    await_that(lambda: all(len(events) > 2 for events in streams), 60)
    killed_at = time.monotonic()
    before[2].kill()
    for thread in threads:
        thread.join(60)
    assert max(ended_at) - killed_at < 3 * 2.0
    for events in streams:
        assert "Worker_TP0_PP1 was killed by SIGKILL" in json.dumps(events[-1]["error"])
    assert all(gone(rank.pid, 9) for rank in before)
    await_that(lambda: server.request("GET", "/readyz")[0] == 200, 90)
    assert shared.complete(**{**LONG, "max_tokens": 4})["usage"]["completion_tokens"] == 4
    assert total(shared.samples(), "vllm_obs_engine_restarts_total") == 1
    server.family = psutil.Process(server.process.pid).children(recursive=True)


def test_nothing_is_left_in_the_run_directory_for_the_meeting_of_ranks(shared: ObservedServer) -> None:
    run_dir = next(Path(fd) for fd in _open_files(shared) if fd.endswith(".ring")).parent
    assert not [path for path in run_dir.iterdir() if "rank" in path.name or "store" in path.name]


def _open_files(shared: ObservedServer) -> list[str]:
    engine = shared.server.child("vllm-obs::EngineCore_DP0")
    return [each.path for each in engine.memory_maps()]

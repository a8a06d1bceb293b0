"""A server whose model two shards of two stages share: every rank is seen, and one that is killed is named."""

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from observed_server import NAME, ObservedServer, await_that, observed, total
from process_watch import gone

RANKS = [f"Worker_TP{shard}_PP{stage}" for stage in (0, 1) for shard in (0, 1)]
LONG = {"model": NAME, "prompt": "Once", "max_tokens": 1500, "ignore_eos": True, "temperature": 0.0}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObservedServer]:
    with observed(
        tmp_path_factory.mktemp("tiny"), "--tensor-parallel-size", "2", "--pipeline-parallel-size", "2"
    ) as server:
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

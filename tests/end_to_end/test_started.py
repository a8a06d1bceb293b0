"""A real start and its memory are accounted for, by the API, the command and the metrics, idle and under load."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from load_client import Asked, LoadClient
from observed_server import ObservedServer, await_that, observed, total
from run_rings import only_run, records_of

from vllm_obs.telemetry.records import MemorySampled

LEAST_OF_START = 0.99
LEAST_OF_MEMORY = 0.95
BODY = {"prompt": [5] * 600, "max_tokens": 64, "ignore_eos": True}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("started")


@pytest.fixture(scope="module", params=["uni", "mp"])
def server(request: pytest.FixtureRequest, base: Path) -> Iterator[ObservedServer]:
    runs = base / f"runs-{request.param}"
    flags = ("--distributed-executor-backend", request.param, "--max-model-len", "1024")
    with observed(base / request.param, *flags, env={"VLLM_OBS_RUN_DIR": str(runs)}) as running:
        await_that(lambda: {each["state"] for each in running.inspect("processes")["processes"]} == {"ready"})
        yield running
        await_that(lambda: {"APIServer_0", "EngineCore_DP0"} <= recorded_roles(only_run(runs)))
    # It has ended: what it left behind tells the same.
    views = startup_command("--json", runs=runs)
    assert views["startup"]["run"]["accounted"] >= LEAST_OF_START
    assert {row["role"] for row in views["memory"]["processes"]} >= {"APIServer_0", "EngineCore_DP0"}


def recorded_roles(run: Path) -> set[str]:
    """Whose memory the Observer has recorded; it looks at one process a second."""
    return {each.role for each in records_of(run, "Observer") if isinstance(each, MemorySampled)}


def startup_command(*arguments: str, runs: Path) -> Any:
    command = [sys.executable, "-m", "vllm_obs", "startup", *arguments]
    env = {**os.environ, "VLLM_OBS_RUN_DIR": str(runs)}
    done = subprocess.run(command, env=env, capture_output=True, timeout=60, check=True)
    return json.loads(done.stdout)


def accounted(server: ObservedServer) -> dict[str, float]:
    """The share of each process's memory that has a name."""
    return {row["role"]: row["accounted"] for row in server.inspect("memory")["processes"]}


def parts(server: ObservedServer) -> str:
    """What each process's memory is, for who reads why a test failed."""
    rows = server.inspect("memory")["processes"]
    return "\n".join(str([row["role"], row["resident_bytes"], *row["parts"]]) for row in rows)


def resident(server: ObservedServer, part: str) -> int:
    return int(server.inspect("memory")["total"]["parts"].get(part, 0))


def test_start_and_memory_are_accounted_for(server: ObservedServer) -> None:
    view = server.inspect("startup")
    shares = {row["role"]: row["accounted"] for row in view["processes"]}
    assert {"APIServer_0", "EngineCore_DP0", "Observer"} <= set(shares)
    assert min(shares.values()) >= LEAST_OF_START, shares
    assert view["run"]["accounted"] >= LEAST_OF_START
    path = view["run"]["critical_path"]
    assert sum(segment["share"] for segment in path) == pytest.approx(1)
    assert {"import torch", "load weights"} <= {segment["phase"] for segment in path}
    assert view["says"].startswith("Ready ")

    idle = accounted(server)
    assert set(idle) == set(shares)
    assert min(idle.values()) >= LEAST_OF_MEMORY, parts(server)

    cache = resident(server, "kv_cache")
    client = LoadClient(server.port, 8)
    with ThreadPoolExecutor(1) as pool:
        load = pool.submit(client.run, [Asked(f"r-{number}", BODY) for number in range(24)])
        busy = []
        while not load.done():
            busy.append(min(accounted(server).values()))
        assert {one.status for one in load.result()} == {200}
    assert busy
    assert min(busy) >= LEAST_OF_MEMORY, parts(server)
    assert resident(server, "kv_cache") >= cache > 0
    (held,) = server.inspect("memory")["kv_cache"]
    assert held["reserved_bytes"] >= held["resident_bytes"] > 0

    samples = server.samples()
    assert total(samples, "vllm_obs_memory_bytes", part="weights") > 0
    assert total(samples, "vllm_obs_memory_bytes", role="APIServer", part="tokenizer") > 0

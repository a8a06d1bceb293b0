"""A real server under load is sampled, every process of it, by both samplers, and no request fails."""

import json
import re
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

import pytest
from load_client import Asked, LoadClient, Seen
from observed_server import ObservedServer, await_that, observed

from vllm_obs.telemetry.sample_collapsed import read_collapsed
from vllm_obs.telemetry.sample_pyspy import why_not
from vllm_obs.telemetry.stacks import py_spy

SECONDS = 2
ROLES = ["APIServer", "EngineCore", "Observer", "Worker"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObservedServer]:
    """The worker has a process of its own."""
    with observed(tmp_path_factory.mktemp("model"), "--distributed-executor-backend", "mp") as server:
        yield server


def ask(server: ObservedServer, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
    connection = HTTPConnection(server.server.inspector, timeout=30)
    try:
        content = None if body is None else json.dumps(body)
        connection.request(method, path, content, {"content-type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def sampled(server: ObservedServer, **order: Any) -> dict[str, Any]:
    """A profile taken of the server while it answers requests, all of which succeed."""
    requests = [
        Asked(f"r{number}", {"prompt": "Once upon a time", "max_tokens": 60, "ignore_eos": True, "stream": True})
        for number in range(24)
    ]
    seen: list[Seen] = []
    load = threading.Thread(target=lambda: seen.extend(LoadClient(server.port, 4).run(requests)))
    load.start()
    status, body = ask(server, "POST", "/inspect/profile", {"kind": "samples", "seconds": SECONDS, **order})
    assert status == 200, body
    name = json.loads(body)["profile"]
    await_that(lambda: server.inspect(f"profiles/{name}")["state"] != "running")
    load.join(60)
    assert [exchange.status for exchange in seen] == [200] * len(requests)
    assert all(exchange.finish_reasons == ["length"] for exchange in seen)
    return dict(server.inspect(f"profiles/{name}"))


def files_of(server: ObservedServer, profile: dict[str, Any]) -> dict[str, bytes]:
    found = {}
    for file in profile["files"]:
        status, content = ask(server, "GET", f"/inspect/profiles/{profile['profile']}/{file['name']}")
        assert (status, len(content)) == (200, file["num_bytes"])
        found[file["name"]] = content
    return found


def check_merged(files: dict[str, bytes]) -> None:
    """All roles are there, with frames where each of them must be found."""
    counts = read_collapsed(files["merged.collapsed.txt"].decode().splitlines())
    assert sorted({stack[0] for stack in counts}) == ROLES
    for role, function in {
        "EngineCore": "EngineCoreProc.run (vllm_obs/engine/core_proc.py",
        "APIServer": "Lifecycle.run (vllm_obs/server/lifecycle.py",
        "Observer": "(vllm_obs/telemetry/observer_main.py",
        "Worker": "WorkerRank.run (vllm_obs/engine/executor/worker_process.py",
    }.items():
        name = function.partition(" ")[0].rpartition(".")[2]
        place = function.partition("(")[2]
        mains = [stack for stack in counts if stack[:2] == (role, "MainThread")]
        assert any(name in frame and place in frame for stack in mains for frame in stack), (role, mains[:3])
    speedscope = json.loads(files["merged.speedscope.json"])
    names = [profile["name"] for profile in speedscope["profiles"]]
    assert names[:4] == ROLES
    assert any(re.fullmatch(r"Worker_TP0 \(pid \d+\) · MainThread", name) for name in names)
    for profile in speedscope["profiles"]:
        assert profile["endValue"] == pytest.approx(sum(profile["weights"]))


def test_each_process_samples_itself(server: ObservedServer) -> None:
    profile = sampled(server, sampler="in-process", rate_hz=99)
    assert (profile["state"], profile["kind"], profile["sampling"]["missing"]) == ("written", "samples", [])
    assert profile["sampling"]["sampler"] == "in-process"
    check_merged(files_of(server, profile))
    roles = {role["role"]: role for role in profile["samples"]}
    assert sorted(roles) == ROLES
    for role in roles.values():
        (process,) = role["processes"]
        assert process["num_looks"] + process["num_missed"] == pytest.approx(99 * SECONDS, rel=0.5)
        assert 0 < process["cost_share"] < 1
        assert not any(thread["thread"] == "stack sampler" for thread in role["threads"])
    (worker_main,) = [row for row in roles["Worker"]["threads"] if row["thread"] == "MainThread"]
    assert worker_main["num_ran"] > 0
    assert sorted(part["role"] for part in profile["parts"]) == [
        "APIServer_0",
        "EngineCore_DP0",
        "Observer",
        "Worker_TP0",
    ]


def test_py_spy_samples_all_from_outside_where_it_may(server: ObservedServer) -> None:
    profile = sampled(server)
    pids = [part["pid"] for part in profile["parts"]]
    if py_spy() is None or any(why_not(pid) for pid in pids):
        assert profile["sampling"]["sampler"] == "in-process"
        assert "py-spy" in profile["sampling"]["says"]
    else:
        assert profile["sampling"] == {
            "profile": profile["profile"],
            "sampler": "py-spy",
            "says": "py-spy looks at each process from outside",
            "missing": [],
        }
    assert profile["state"] == "written"
    check_merged(files_of(server, profile))


def test_an_order_that_is_none_is_refused_in_words(server: ObservedServer) -> None:
    for order, words in (
        ({"seconds": 61}, "at most 60 for samples"),
        ({"rate_hz": 251}, "rate_hz must be a number from 1 to 250"),
        ({"sampler": "perf"}, "sampler must be one of auto, py-spy, in-process"),
    ):
        status, body = ask(server, "POST", "/inspect/profile", {"kind": "samples", **order})
        assert (status, words in json.loads(body)["error"]["message"]) == (400, True)

"""Whatever ends a real server leaves one folder that tells it: cause, last steps, open requests, and no prompt."""

import asyncio
import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from observed_server import NO_MODEL, await_that, tiny_model
from process_watch import gone
from serving import Server

from vllm_obs.telemetry.incident_reader import read_incident
from vllm_obs.telemetry.incident_shelf import IncidentShelf
from vllm_obs.telemetry.memory_limits import MemoryReader
from vllm_obs.telemetry.replay import open_replay

CANARY = "canarybird"
BODY = {"prompt": f"The {CANARY} sings of", "max_tokens": 1800, "ignore_eos": True, "temperature": 0.0}
NUM_STREAMS = 3
NUM_STEPS = 110
LIMIT_BYTES = 1 << 20
STAGES = {"receive", "tokenize", "submit", "queue", "prefill", "decode"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return tiny_model(tmp_path_factory.mktemp("model"))


@contextlib.contextmanager
def started(model: Sequence[str], base: Path, *args: str, num_restarts: int = 0, **env: str) -> Iterator[Server]:
    """A ready server with a ready Observer, which the test ends; nothing of it is left."""
    flags = ("--enable-log-requests", "--engine-restarts", str(num_restarts))
    server = Server(*model, *flags, *args, env={"VLLM_OBS_RUN_DIR": str(base), **env})
    try:
        server.wait_ready(120)
        server.wait_observed()
        yield server
        assert server.leftovers(10) == []
    finally:
        server.close()


class Streams:
    """Open streams and what has come of each so far."""

    def __init__(self, server: Server) -> None:
        self.events: list[list[dict[str, Any]]] = [[] for _ in range(NUM_STREAMS)]
        self._threads = [threading.Thread(target=self._read, args=(server, events)) for events in self.events]
        for thread in self._threads:
            thread.start()
        await_that(lambda: all(len(events) >= NUM_STEPS for events in self.events), 60)

    def _read(self, server: Server, events: list[dict[str, Any]]) -> None:
        with contextlib.suppress(OSError):
            for event in server.stream("/v1/completions", BODY):
                events.append(event)

    def join(self) -> list[dict[str, Any]]:
        """The last event of each, once all have ended."""
        for thread in self._threads:
            thread.join(30)
        return [events[-1] for events in self.events]


def filed(base: Path, num: int = 1) -> list[dict[str, Any]]:
    """Everything about the incidents of the only run, oldest first; there must be so many."""
    (run,) = (path for path in base.iterdir() if path.is_dir())
    shelf = IncidentShelf(run)
    names = shelf.names()
    assert len(names) == num, names
    assert [path.name for path in shelf.path.iterdir() if path.name.startswith(".")] == []
    found = [read_incident(shelf, name) for name in names]
    return [content for content in found if content is not None]


def assert_whole(content: dict[str, Any]) -> None:
    """The last steps and the open requests with their stages."""
    assert len(content["steps"]) >= 100
    assert [row["step"] for row in content["steps"]] == sorted({row["step"] for row in content["steps"]})
    requests = content["open_requests"]
    assert len(requests) == content["incident"]["requests"]["num_open"] == NUM_STREAMS
    for request in requests:
        assert request["stage"] == "decode"
        assert set(request["stage_ns"]) <= STAGES
        assert sum(request["stage_ns"].values()) == request["age_ns"]
        assert request["num_output_tokens"] >= NUM_STEPS - 1
    assert {row["role"] for row in content["processes"]} >= {"APIServer_0", "EngineCore_DP0", "Observer"}
    assert all(content["incident"]["versions"].values())


def assert_no_prompt(base: Path) -> None:
    """The canary is in no file of the run's directory."""
    for path in base.rglob("*"):
        if path.is_file():
            assert CANARY.encode() not in path.read_bytes(), path


def replayed_step(recording: Path) -> int:
    """The last step that a replay of the incident's recording knows."""
    service = open_replay(recording, "127.0.0.1", 0)
    last = service.observer.state.past_engines[-1].steps.last
    asyncio.run(service.close())
    assert last is not None
    return last.step


def shown(base: Path, *arguments: str) -> str:
    """What the command says with nothing running."""
    done = subprocess.run(
        [sys.executable, "-m", "vllm_obs", "incident", *arguments],
        env={**os.environ, "VLLM_OBS_RUN_DIR": str(base)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


def test_a_killed_engine(base: Path) -> None:
    with started(NO_MODEL, base) as server:
        streams = Streams(server)
        engine = server.child("EngineCore")
        engine.kill()
        assert [event["error"]["reason"] for event in streams.join()] == ["engine_dead"] * NUM_STREAMS
        assert server.process.wait(20) == 70
    (content,) = filed(base)
    incident, culprit = content["incident"], content["incident"]["culprit"]
    assert (incident["cause"], culprit["role"], culprit["pid"]) == ("killed", "EngineCore_DP0", engine.pid)
    assert (culprit["signal"], culprit["exit_code"], culprit["is_inferred"]) == ("SIGKILL", -9, False)
    assert incident["consequences"] == []
    assert_whole(content)
    assert any("was killed by SIGKILL" in line for line in content["logs"]["APIServer_0"])
    assert any("ready" in line or "KV" in line for line in content["logs"]["EngineCore_DP0"])
    report = shown(base, "show")
    assert incident["says"] in report
    assert content["open_requests"][0]["request_id"] in report
    assert json.loads(shown(base, "list", "--json"))[0]["name"] == incident["name"]
    assert replayed_step(Path(content["folder"]) / "recording") == content["steps"][-1]["step"]
    assert_no_prompt(base)


def test_a_worker_killed_in_a_step(base: Path) -> None:
    with started(NO_MODEL, base, "--distributed-executor-backend", "mp") as server:
        streams = Streams(server)
        worker = server.child("Worker_TP0")
        worker.kill()
        assert [event["error"]["reason"] for event in streams.join()] == ["engine_dead"] * NUM_STREAMS
        assert server.process.wait(20) == 70
    (content,) = filed(base)
    incident, culprit = content["incident"], content["incident"]["culprit"]
    assert (incident["cause"], culprit["role"], culprit["rank"], culprit["pid"]) == (
        "killed",
        "Worker_TP0",
        0,
        worker.pid,
    )
    assert [(each["role"], each["exit_code"]) for each in incident["consequences"]] == [("EngineCore_DP0", 70)]
    assert_whole(content)
    assert "Worker_TP0" in {row["role"] for row in content["processes"]}
    assert_no_prompt(base)


def test_a_killed_api_server_which_the_next_start_mentions_once(base: Path) -> None:
    with started(NO_MODEL, base) as server:
        streams = Streams(server)
        server.process.kill()
        assert server.process.wait(20) == -signal.SIGKILL
        streams.join()
    (content,) = filed(base)
    incident, culprit = content["incident"], content["incident"]["culprit"]
    assert (incident["cause"], culprit["role"], culprit["pid"]) == ("killed", "APIServer_0", server.process.pid)
    assert culprit["signal"] == "SIGKILL"
    assert [each["role"] for each in incident["consequences"]] == ["EngineCore_DP0"]
    assert_whole(content)
    assert_no_prompt(base)
    mentions = []
    for _ in range(2):
        following = Server(*NO_MODEL, env={"VLLM_OBS_RUN_DIR": str(base)})
        try:
            await_that(lambda following=following: any(base.glob("*/APIServer_0.ring")) and _starts(following), 60)
            mentions.append(f"The last run left an incident: {incident['says']}" in following.log.read_text())
        finally:
            following.process.terminate()
            following.process.wait(20)
            following.close()
    assert mentions == [True, False]


def _starts(server: Server) -> bool:
    children = psutil.Process(server.process.pid).children()
    return any("EngineCore" in " ".join(child.cmdline()) for child in children)


def test_an_exception_in_a_step_and_three_in_a_row(base: Path) -> None:
    faults = {"VLLM_OBS_TEST_HOOKS": "1", "VLLM_OBS_TEST_FAULTS": "sample_tokens=raise"}
    with started(NO_MODEL, base, **faults) as server:
        assert server.request("POST", "/v1/completions", BODY)[0] == 500
        await_that(lambda: any(base.glob("*/incidents/*")), 20)
        assert server.request("GET", "/readyz")[0] == 200
        counted = 'vllm_obs_incidents_total{cause="step_failed"} 1.0'
        await_that(lambda: counted in server.exposition())
        for _ in range(2):
            assert server.request("POST", "/v1/completions", BODY)[0] == 500
        assert server.process.wait(20) == 70
    first, second = filed(base, 2)
    assert (first["incident"]["cause"], first["incident"]["culprit"]["role"]) == ("step_failed", "EngineCore_DP0")
    assert first["incident"]["culprit"]["error"] == "InjectedFaultError"
    assert first["incident"]["failed_steps"] == [{"step": 1, "error": "InjectedFaultError", "num_requests": 1}]
    assert [row["stage"] for row in first["open_requests"]] == ["prefill"]
    culprit = second["incident"]["culprit"]
    assert (second["incident"]["cause"], culprit["role"], culprit["exit_code"]) == (
        "exception",
        "EngineCore_DP0",
        70,
    )
    assert (culprit["error"], culprit["place"].rpartition(":")[0]) == ("InjectedFaultError", "engine/faults.py")
    assert_no_prompt(base)


@contextlib.contextmanager
def memory_group() -> Iterator[Path]:
    """A control group below this process's own; skips where none can be made."""
    groups = [group for group in MemoryReader().groups(os.getpid()) if (group / "memory.limit_in_bytes").exists()]
    if not groups or not os.access(groups[0], os.W_OK):
        pytest.skip("no memory control group (v1) can be made here")
    group = groups[0] / f"vllm-obs-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no memory control group can be made here: {error}")
    try:
        yield group
    finally:
        deadline = time.monotonic() + 10
        while group.exists() and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                group.rmdir()
            time.sleep(0.05)


def leave_it(group: Path, num_bytes: int) -> None:
    """Let a group have so much more than it uses: what it uses cannot be taken from it."""

    def is_set() -> bool:
        used = int((group / "memory.usage_in_bytes").read_text())
        try:
            (group / "memory.limit_in_bytes").write_text(str(used + num_bytes))
        except OSError:  # it has come to use more meanwhile
            return False
        return True

    await_that(is_set)


MANY = {**BODY, "n": 32, "max_tokens": 4}


def test_an_engine_that_gets_no_memory(model: list[str], base: Path) -> None:
    with started(model, base) as server:
        engine = server.child("EngineCore")
        limit = engine.memory_info().vms
        resource.prlimit(engine.pid, resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        assert server.request("POST", "/v1/completions", MANY)[0] == 500
        # Whether the engine outlives it depends on what it asks for next.
        await_that(lambda: server.process.poll() is not None or any(base.glob("*/incidents/*")), 20)
        server.stop()
        said = server.log.read_text()
    (content,) = filed(base)
    incident, culprit = content["incident"], content["incident"]["culprit"]
    assert (incident["cause"], culprit["role"]) == ("out_of_memory", "EngineCore_DP0")
    assert said.count(incident["says"]) == 1
    assert incident["failed_steps"][0]["num_requests"] > 0
    assert {row["stage"] for row in content["open_requests"]} <= {"submit", "queue", "prefill"}
    assert content["open_requests"]
    (row,) = (row for row in content["processes"] if row["role"] == "EngineCore_DP0")
    assert row["memory"]["resident_bytes"] > 0
    assert_no_prompt(base)


def test_an_engine_that_the_kernel_kills_for_its_memory(model: list[str], base: Path) -> None:
    """And P1 and P2 hold: its streams are told, and another engine serves."""
    with memory_group() as group, started(model, base, num_restarts=1) as server:
        server.wait_observed()
        engine = server.child("EngineCore")
        (group / "cgroup.procs").write_text(str(engine.pid))
        time.sleep(4)  # the Observer looks once a second, and then knows the group
        streams = Streams(server)
        leave_it(group, LIMIT_BYTES)
        with contextlib.suppress(OSError, ValueError):
            server.request("POST", "/v1/completions", MANY)
        assert gone(engine.pid, 20)
        died_at = time.monotonic()
        assert [event["error"]["reason"] for event in streams.join()] == ["engine_dead"] * NUM_STREAMS
        assert time.monotonic() - died_at < 3 * 3.0
        server.wait_ready()
        assert server.request("POST", "/v1/completions", {**BODY, "max_tokens": 2})[0] == 200
        await_that(lambda: any(base.glob("*/incidents/[!.]*")), 20)
        assert server.stop() == 0
        said = server.log.read_text()
    (content,) = filed(base)
    incident, culprit = content["incident"], content["incident"]["culprit"]
    assert said.count(incident["says"]) == 1
    assert "was killed by the kernel for lack of memory" in incident["says"]
    assert (incident["cause"], culprit["role"], culprit["signal"]) == (
        "out_of_memory",
        "EngineCore_DP0",
        "SIGKILL",
    )
    assert (culprit["num_oom_kills"], culprit["exit_code"]) == (1, -signal.SIGKILL)
    assert Path(culprit["memory"]["group"]).name == group.name
    assert len(content["steps"]) >= 100
    assert_no_prompt(base)

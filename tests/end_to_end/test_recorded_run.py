"""A served run leaves its facts in rings, from every process and after any end; and loads nothing heavy."""

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from either_model import Flags, either_model
from observed_server import await_that
from run_rings import only_run, records_of
from serving import Server, serving
from start_phases import outermost

from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.records import (
    BlocksChanged,
    HttpRequestEnded,
    OutputsTaken,
    ProcessExited,
    ProcessPhase,
    RequestEnded,
    RequestReleased,
    RequestSubmitted,
    RequestTaken,
    StepAnswered,
    StepPlanned,
    WorkerStep,
)
from vllm_obs.telemetry.ring_header import RingHeader
from vllm_obs.telemetry.ring_reader import RingReader

TEXT = "/v1/completions"
LIGHT = ("--max-model-len", "1024", "--kv-cache-memory-bytes", "256M")

PROBE = """
import signal, sys
def tell(*_):
    with open(f"{DIRECTORY}/modules-{__import__('os').getpid()}", "w") as file:
        file.write(" ".join(sys.modules))
signal.signal(signal.SIGUSR2, tell)
"""

API_SERVER_KINDS = {
    "HttpRequestEnded",
    "GarbageSampled",
    "LoopSampled",
    "MemorySampled",
    "OutputsTaken",
    "ProcessExited",
    "ProcessPhase",
    "ProcessReady",
    "ProcessStarted",
    "RequestEnded",
    "RequestSubmitted",
    "TelemetrySet",
}
ENGINE_KINDS = {
    "BlocksCached",
    "BlocksChanged",
    "BlocksKeyframe",
    "EngineDescribed",
    "EngineStateChanged",
    "MemorySampled",
    "ProcessPhase",
    "ProcessReady",
    "ProcessStarted",
    "RequestKeyframe",
    "RequestReleased",
    "RequestTaken",
    "StepAnswered",
    "StepPlanned",
    "WorkerLimits",
    "WorkerStep",
}


@pytest.fixture
def run_base() -> Iterator[Path]:
    """A short directory for run directories."""
    with tempfile.TemporaryDirectory(prefix="vo-", dir="/tmp", ignore_cleanup_errors=True) as base:
        yield Path(base)


@contextlib.contextmanager
def recorded(base: Path, *args: str, **env: str) -> Iterator[Server]:
    with serving(*LIGHT, *args, env={"VLLM_OBS_RUN_DIR": str(base), **env}) as server:
        yield server


def of(records: list[Any], kind: type) -> list[Any]:
    return [record for record in records if isinstance(record, kind)]


def header_of(run: Path, role: str) -> RingHeader:
    with RingReader(run / f"{role}.ring") as reader:
        return reader.header()


class Served(NamedTuple):
    """A run that has ended, and its headers as they were at a moment (ns) when it had served three requests.

    `modules` are those that the API server and the engine had loaded by then.
    """

    run: Path
    seen_at: int
    api_server: RingHeader
    engine: RingHeader
    modules: list[list[str]]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One request of 24 tokens, one that is refused, and one that is only scored; traces are to go somewhere."""
    probes = tmp_path_factory.mktemp("probes")
    (probes / "sitecustomize.py").write_text(f"DIRECTORY = {str(probes)!r}\n{PROBE}")
    path = os.pathsep.join(filter(None, [str(probes), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory(prefix="vo-", dir="/tmp") as place:
        with recorded(Path(place), "--otlp-traces-endpoint", "http://127.0.0.1:1", PYTHONPATH=path) as server:
            server.request("POST", TEXT, {"prompt": "Once upon a time, there was a mouse that", "max_tokens": 24})
            server.request("POST", TEXT, {"prompt": "Hi", "temperature": 9})
            server.request("POST", TEXT, {"prompt": "Score", "echo": True, "logprobs": 1, "max_tokens": 0})
            time.sleep(1.2)
            run = only_run(Path(place))
            headers = (header_of(run, "APIServer_0"), header_of(run, "EngineCore_DP0"))
            found = Served(run, time.monotonic_ns(), *headers, modules_of(server, probes))
        yield found


def modules_of(server: Server, probes: Path) -> list[list[str]]:
    """What the API server and the engine have loaded."""
    processes = (psutil.Process(server.process.pid), server.child("vllm-obs::EngineCore"))
    found = []
    for process in processes:
        process.send_signal(signal.SIGUSR2)
        told = probes / f"modules-{process.pid}"
        found.append(await_that(lambda told=told: told.exists() and told.read_text()).split())
    return found


def test_the_headers_tell_what_is_done_now(served: Served) -> None:
    assert (served.api_server.activity, served.engine.activity) == (Activity.SERVING, Activity.WAITING)
    assert served.seen_at - served.api_server.heartbeat_at < 3 * 10**9
    assert served.engine.step >= 25
    assert served.engine.progress >= 2 * 25
    ends = [header_of(served.run, role).closed_at for role in ("APIServer_0", "EngineCore_DP0")]
    assert all(closed_at > served.seen_at for closed_at in ends)


def test_a_served_request_leaves_every_kind_of_fact(served: Served) -> None:
    api, core = records_of(served.run, "APIServer_0"), records_of(served.run, "EngineCore_DP0")
    assert {type(record).__name__ for record in api} == API_SERVER_KINDS
    assert {type(record).__name__ for record in core} == ENGINE_KINDS
    http = [fact for fact in of(api, HttpRequestEnded) if fact.handler == TEXT]
    assert sorted((fact.status, fact.reason) for fact in http) == [(200, ""), (200, ""), (400, "invalid_value")]
    planned = [step.step for step in of(core, StepPlanned) if step.request_ids]
    assert (
        planned == [step.step for step in of(core, StepAnswered)] == [step.step for step in of(core, WorkerStep)]
    )
    assert {fact.step for fact in of(api, OutputsTaken)} <= set(planned)
    assert sorted(block for fact in of(core, BlocksChanged) for blocks in fact.allocated for block in blocks) == (
        sorted(block for fact in of(core, BlocksChanged) for blocks in fact.freed for block in blocks)
    )
    exits = {fact.role: fact.exit_code for fact in of(api, ProcessExited)}
    assert exits["EngineCore_DP0"] == 0


def test_both_sides_tell_the_same_of_a_request_in_order_of_time(served: Served) -> None:
    api, core = records_of(served.run, "APIServer_0"), records_of(served.run, "EngineCore_DP0")
    http = {fact.http_id: fact for fact in of(api, HttpRequestEnded)}
    ended = {fact.request_id: fact for fact in of(api, RequestEnded)}
    taken = {fact.request_id: fact for fact in of(core, RequestTaken)}
    released = {fact.request_id: fact for fact in of(core, RequestReleased)}
    for submitted, num_tokens in zip(of(api, RequestSubmitted), (24, 0), strict=True):
        name = submitted.request_id
        answered = [step for step in of(core, StepAnswered) if name in step.request_ids]
        assert ended[name].num_output_tokens == released[name].num_output_tokens == num_tokens
        counts = [dict(zip(step.request_ids, step.num_new_tokens, strict=True))[name] for step in answered]
        assert sum(counts) == num_tokens
        moments = [
            submitted.received_at,
            submitted.parsed_at,
            submitted.rendered_at,
            submitted.tokenized_at,
            submitted.submitted_at,
            taken[name].taken_at,
            next(step.schedule_ended_at for step in of(core, StepPlanned) if name in step.request_ids),
            max(step.sampled_at for step in answered),
            ended[name].taken_at,
            ended[name].ended_at,
            http[submitted.http_id].ended_at,
        ]
        assert moments == sorted(moments)


def test_the_start_is_accounted_for_without_gaps(served: Served) -> None:
    for role in ("APIServer_0", "EngineCore_DP0"):
        records = records_of(served.run, role)
        phases = outermost([phase for phase in of(records, ProcessPhase) if phase.role == role])
        assert all(earlier.ended_at == later.begun_at for earlier, later in pairwise(phases))
        (ready,) = (record for record in records if type(record).__name__ == "ProcessReady")
        accounted = phases[-1].ended_at - phases[0].begun_at
        assert accounted / (ready.ready_at - phases[0].begun_at) > 0.99
    inner = outermost([phase for phase in of(records, ProcessPhase) if phase.role == "Worker_TP0"])
    (outer,) = (phase for phase in phases if phase.phase == "make core")
    assert (inner[-1].ended_at - inner[0].begun_at) / (outer.ended_at - outer.begun_at) > 0.98


@either_model
def test_the_last_steps_of_a_killed_engine_can_be_read(run_base: Path, flags: Flags) -> None:
    with contextlib.ExitStack() as stack:
        server = Server(*LIGHT, *flags, "--engine-restarts", "0", env={"VLLM_OBS_RUN_DIR": str(run_base)})
        stack.callback(server.close)
        server.wait_ready()
        asked = {"prompt": "Once", "max_tokens": 900, "ignore_eos": True}
        events = server.stream(TEXT, asked)
        for _ in range(120):
            next(events)
        engine = server.child("vllm-obs::EngineCore")
        engine.send_signal(signal.SIGKILL)
        assert list(events)[-1]["error"]["reason"] == "engine_dead"
        assert server.process.wait(30) == 70
    run = only_run(run_base)
    with RingReader(run / "EngineCore_DP0.ring") as reader:
        header = reader.header()
        assert (header.pid, header.closed_at, reader.is_writer_alive()) == (engine.pid, 0, False)
    core, served = records_of(run, "EngineCore_DP0"), records_of(run, "APIServer_0")
    steps = [step.step for step in of(core, StepAnswered)]
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) >= 100
    assert header.step - steps[-1] in (0, 1)
    assert ("EngineCore_DP0", -9) in [(fact.role, fact.exit_code) for fact in of(served, ProcessExited)]
    (ended,) = of(served, RequestEnded)
    assert (ended.finish_reason, ended.error) == ("error", "engine_dead")


def test_each_rank_records_its_own_steps(run_base: Path) -> None:
    with recorded(run_base, "--distributed-executor-backend", "mp") as server:
        assert server.request("POST", TEXT, {"prompt": "Hi", "max_tokens": 3})[0] == 200
    run = only_run(run_base)
    worker, core = records_of(run, "Worker_TP0"), records_of(run, "EngineCore_DP0")
    assert of(core, WorkerStep) == []
    assert [step.step for step in of(worker, WorkerStep)] == [step.step for step in of(core, StepAnswered)]
    phases = outermost(of(worker, ProcessPhase))
    assert [phase.phase for phase in phases] == [
        "start process",
        "import torch",
        "load weights",
        "wait for the other ranks",
        "kv cache",
        "warm-up",
    ]
    assert all(earlier.ended_at == later.begun_at for earlier, later in pairwise(phases))


def test_a_run_without_telemetry_leaves_nothing_and_has_no_observer(run_base: Path) -> None:
    with recorded(run_base, "--load-format", "synthetic", "--disable-telemetry") as server:
        assert server.request("POST", TEXT, {"prompt": "Hi", "max_tokens": 2})[0] == 200
        status, reply = server.request("GET", "/metrics")
        assert (status, reply["error"]["message"]) == (503, "telemetry is switched off")
        titles = [" ".join(process.cmdline()) for process in server.family]
        assert not any("Observer" in title for title in titles)
    assert list(only_run(run_base).glob("*.ring")) == []


def test_serving_processes_load_no_exporter(served: Served) -> None:
    for modules in served.modules:
        assert "vllm_obs.telemetry.flight_recorder" in modules
        heavy = ("prometheus_client", "opentelemetry.sdk", "opentelemetry.exporter", "streamlit")
        assert [module for module in modules if module.startswith(heavy)] == []

"""The API server's main: the engine is started first, so that it loads while the HTTP side is imported."""

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar

from vllm_obs.engine.client_dp import DPLBAsyncMPClient
from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.core_files import leave_no_core_files
from vllm_obs.engine.errors import ConfigError, StartupError
from vllm_obs.engine.log import API_TITLE, configure_logging
from vllm_obs.engine.log_file import logged_to
from vllm_obs.engine.process_clock import process_started_at
from vllm_obs.engine.recording import make_recorder
from vllm_obs.engine.run_dir import RunDirectory
from vllm_obs.engine.startup_phases import NoMeter, StartupPhases, startup_part
from vllm_obs.server.config import ServerConfig
from vllm_obs.telemetry.console import tell
from vllm_obs.telemetry.flight_recorder import API_SERVER_RING_BYTES
from vllm_obs.telemetry.memory_samples import MemorySamples
from vllm_obs.telemetry.recorder import ProcessRecorder
from vllm_obs.telemetry.records import ProcessStarted, TelemetrySet
from vllm_obs.telemetry.stack_dump import dumps_stacks

if TYPE_CHECKING:
    from vllm_obs.server.lifecycle import Lifecycle

ROLE = "APIServer_0"

L = TypeVar("L", bound="Lifecycle")


def run(
    config: VllmConfig,
    server: ServerConfig,
    sock: socket.socket,
    started_at: int | None = None,
    on_ready: Callable[[], None] = lambda: None,
) -> int:
    """Serve on the bound socket until told to stop; the exit code.

    0 stopped and drained, 1 stopped with work cut off, 70 the engine died, 78 it cannot be started as configured.
    `started_at` is the monotonic moment the start-up time is counted from; `on_ready` is called once the server
    has said that it is ready. Call it from the main thread.
    """

    def serve(lifecycle: "Lifecycle", begun_at: int, phases: StartupPhases) -> int:
        from vllm_obs.engine.open_files import raise_file_limit

        raise_file_limit(server.limits.max_num_connections)
        lifecycle.on_ready = on_ready
        return lifecycle.run(sock, begun_at, phases)

    return run_server(ServedRun(config, server, started_at or time.monotonic_ns()), _lifecycle_class, serve)


@dataclass(frozen=True)
class ServedRun:
    """What an API server's main is given; `started_at` is monotonic ns."""

    config: VllmConfig
    server: ServerConfig
    started_at: int


def run_server(run: ServedRun, load: Callable[[], type[L]], act: Callable[[L, int, StartupPhases], int]) -> int:
    """The main of an API server around its lifecycle: `act` runs that from (begun at, phases of the start) on.

    `load` imports the lifecycle's class, while the engine loads. The exit code; errors of the start are told.
    """
    configure_logging(API_TITLE)
    leave_no_core_files()
    try:
        with RunDirectory.create() as directory:
            path = directory.path
            with logged_to(path, ROLE), dumps_stacks(path, ROLE):
                return _run(replace(run, config=recorded(run.config, run.server, directory)), load, act)
    except (ConfigError, StartupError) as error:
        return fail(error)


def recorded(config: VllmConfig, server: ServerConfig, directory: RunDirectory) -> VllmConfig:
    """The configuration of a served run: in its directory, recorded into rings unless telemetry is off."""
    observability = replace(config.observability, recorder="null" if server.disable_telemetry else "ring")
    return replace(config, run_dir=str(directory.path), observability=observability)


def _run(run: ServedRun, load: Callable[[], type[L]], act: Callable[[L, int, StartupPhases], int]) -> int:
    recorder = make_recorder(run.config, ROLE, API_SERVER_RING_BYTES)
    try:
        phases = _begin_record(run.server, recorder, run.started_at)
        client = DPLBAsyncMPClient.launch(run.config, recorder)
        try:
            phases.end("start engine")
            lifecycle = _lifecycle(run, client, recorder, load)
            phases.end("import server")
            MemorySamples(ROLE, recorder).added("import server", "libraries")
            return act(lifecycle, _begun_at(run.started_at), phases)
        except (ConfigError, StartupError):
            client.shutdown(timeout_seconds=0)  # an engine that still loads has nothing to finish
            raise
        finally:
            client.shutdown()
    finally:
        recorder.close()


def _begun_at(started_at: int) -> int:
    """When this process began: what it says of its start counts from there, as its record does."""
    return min(process_started_at(), started_at)


def _begin_record(server: ServerConfig, recorder: ProcessRecorder, started_at: int) -> StartupPhases:
    now = time.monotonic_ns()
    recorder.record(ProcessStarted(ROLE, os.getpid(), now, time.time_ns()))
    recorder.record(TelemetrySet(server.trace_detail_level, server.sampling.rate, now))
    moments = iter([started_at, now])
    phases = StartupPhases(ROLE, recorder, _begun_at(started_at), lambda: next(moments), NoMeter())
    phases.end("start process")
    phases.end("read configuration")
    return StartupPhases(ROLE, recorder, now)


def _lifecycle_class() -> "type[Lifecycle]":
    from vllm_obs.server.lifecycle import Lifecycle

    return Lifecycle


def _lifecycle(
    run: ServedRun, client: DPLBAsyncMPClient, recorder: ProcessRecorder, load: Callable[[], type[L]]
) -> L:
    # Imported here: the engine loads meanwhile.
    with startup_part("import web framework"):
        import_module("fastapi")
    make = load()
    from vllm_obs.server.observer import ObserverChild
    from vllm_obs.server.observer_settings import observer_settings

    if run.server.disable_telemetry:
        return make(run.config, run.server, client, recorder)
    observer = ObserverChild(observer_settings(run.config, run.server), recorder)
    return make(run.config, run.server, client, recorder, observer)


def fail(error: ConfigError | StartupError) -> int:
    """Say why in one line, whatever the error's own words look like."""
    tell(str(error))
    return error.exit_code

"""A batch's main: that of the API server without a port, for as long as there are lines to answer."""

import os
import sys
import time
from importlib import import_module
from typing import TYPE_CHECKING

from vllm_obs.engine.client_async import AsyncMPClient
from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.errors import ConfigError, StartupError
from vllm_obs.engine.log import API_TITLE, configure_logging
from vllm_obs.engine.log_file import logged_to
from vllm_obs.engine.process_clock import process_started_at
from vllm_obs.engine.recording import make_recorder
from vllm_obs.engine.run_dir import RunDirectory
from vllm_obs.engine.startup_phases import StartupPhases, startup_part
from vllm_obs.server.batch_files import BatchFiles
from vllm_obs.server.config import ServerConfig
from vllm_obs.server.serve import ROLE, recorded
from vllm_obs.telemetry.flight_recorder import API_SERVER_RING_BYTES
from vllm_obs.telemetry.memory_samples import MemorySamples
from vllm_obs.telemetry.recorder import ProcessRecorder
from vllm_obs.telemetry.records import ProcessStarted, TelemetrySet
from vllm_obs.telemetry.stack_dump import dumps_stacks

if TYPE_CHECKING:
    from vllm_obs.server.batch_lifecycle import BatchLifecycle


def run_batch(config: VllmConfig, server: ServerConfig, files: BatchFiles, started_at: int) -> int:
    """Answer the input's lines into the output; the exit code. Nothing is written to standard output besides.

    0 every line is answered, 1 some with an error or cut off, 70 the engine died, 78 it cannot be started as
    configured. `started_at` is the monotonic moment the start-up time is counted from. Call it from the main
    thread.
    """
    configure_logging(API_TITLE)
    try:
        with RunDirectory.create() as directory:
            path = directory.path
            with logged_to(path, ROLE), dumps_stacks(path, ROLE):
                return _run(recorded(config, server, directory), server, files, started_at)
    except (ConfigError, StartupError) as error:
        print("vllm-obs:", *str(error).split(), file=sys.stderr, flush=True)
        return error.exit_code


def _run(config: VllmConfig, server: ServerConfig, files: BatchFiles, started_at: int) -> int:
    recorder = make_recorder(config, ROLE, API_SERVER_RING_BYTES)
    try:
        phases = _begin_record(server, recorder, started_at)
        client = AsyncMPClient.launch(config, recorder)
        try:
            phases.end("start engine")
            lifecycle = _lifecycle(config, server, client, recorder)
            phases.end("import server")
            MemorySamples(ROLE, recorder).added("import server", "libraries")
            return lifecycle.run_batch(files, started_at, phases)
        except (ConfigError, StartupError):
            client.shutdown(timeout_seconds=0)  # an engine that still loads has nothing to finish
            raise
        finally:
            client.shutdown()
    finally:
        recorder.close()


def _begin_record(server: ServerConfig, recorder: ProcessRecorder, started_at: int) -> StartupPhases:
    now = time.monotonic_ns()
    recorder.record(ProcessStarted(ROLE, os.getpid(), now, time.time_ns()))
    recorder.record(TelemetrySet(server.trace_detail_level, server.sampling.rate, now))
    phases = StartupPhases(ROLE, recorder, min(process_started_at(), started_at))
    phases.end("start process")
    return phases


def _lifecycle(
    config: VllmConfig, server: ServerConfig, client: AsyncMPClient, recorder: ProcessRecorder
) -> "BatchLifecycle":
    # Imported here: the engine loads meanwhile.
    with startup_part("import web framework"):
        import_module("fastapi")
    from vllm_obs.server.batch_lifecycle import BatchLifecycle
    from vllm_obs.server.observer import ObserverChild
    from vllm_obs.server.observer_settings import observer_settings

    if server.disable_telemetry:
        return BatchLifecycle(config, server, client, recorder)
    observer = ObserverChild(observer_settings(config, server), recorder)
    return BatchLifecycle(config, server, client, recorder, observer)

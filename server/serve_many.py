"""The launcher's main: run directory, log, record and Observer around a Launcher."""

import os
import socket
import time
from collections.abc import Callable

from vllm_obs.engine.client_dp import engine_indices
from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.core_files import leave_no_core_files
from vllm_obs.engine.errors import ConfigError, StartupError
from vllm_obs.engine.log import configure_logging
from vllm_obs.engine.log_file import logged_to
from vllm_obs.engine.process_clock import process_started_at
from vllm_obs.engine.recording import make_recorder
from vllm_obs.engine.run_dir import RunDirectory
from vllm_obs.server.config import ServerConfig
from vllm_obs.server.launcher import ROLE, Launcher
from vllm_obs.server.observer import ObserverChild
from vllm_obs.server.observer_settings import observer_settings
from vllm_obs.server.serve import fail, recorded
from vllm_obs.telemetry.flight_recorder import WORKER_RING_BYTES
from vllm_obs.telemetry.records import ProcessStarted, TelemetrySet
from vllm_obs.telemetry.stack_dump import dumps_stacks


def run_many(
    config: VllmConfig,
    server: ServerConfig,
    sock: socket.socket,
    started_at: int,
    on_ready: Callable[[], None] = lambda: None,
) -> int:
    """As `serve.run`, by several API servers: nothing that serves requests is loaded in this process."""
    configure_logging(ROLE)
    leave_no_core_files()
    try:
        with RunDirectory.create() as directory:
            path = directory.path
            with logged_to(path, ROLE), dumps_stacks(path, ROLE):
                return _run(recorded(config, server, directory), server, sock, (started_at, on_ready))
    except (ConfigError, StartupError) as error:
        return fail(error)


def _run(
    config: VllmConfig, server: ServerConfig, sock: socket.socket, told: tuple[int, Callable[[], None]]
) -> int:
    started_at, on_ready = told
    recorder = make_recorder(config, ROLE, WORKER_RING_BYTES)
    try:
        now = time.monotonic_ns()
        recorder.record(ProcessStarted(ROLE, os.getpid(), now, time.time_ns()))
        recorder.record(TelemetrySet(server.trace_detail_level, server.sampling.rate, now))
        observer = None if server.disable_telemetry else ObserverChild(observer_settings(config, server), recorder)
        launcher = Launcher(config, server, recorder, observer)
        launcher.on_ready = on_ready
        return launcher.run(sock, engine_indices(config.parallel), min(process_started_at(), started_at))
    finally:
        recorder.close()

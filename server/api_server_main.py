"""The main of one of several API servers: `python -m vllm_obs.server.api_server_main`, a child of the launcher."""

import os
import sys
import time
from importlib import import_module

from vllm_obs.engine.child_main import Owner, run_child
from vllm_obs.engine.child_recording import begin_recording
from vllm_obs.engine.log_file import log_to_file
from vllm_obs.engine.startup_phases import startup_part
from vllm_obs.server.api_server_settings import ApiServerSettings
from vllm_obs.server.engine_news import NewsBox
from vllm_obs.telemetry.flight_recorder import API_SERVER_RING_BYTES
from vllm_obs.telemetry.memory_samples import MemorySamples
from vllm_obs.telemetry.records import TelemetrySet


def run_api_server(owner: Owner) -> None:
    """Serve what the launcher hands over, by engines that are the launcher's, until it says that it is over.

    The process ends with the code that Lifecycle gives; ConfigError or StartupError when it cannot start.
    """
    settings = ApiServerSettings.of(owner.configuration)
    config, server = settings.config, settings.server
    log_to_file(config.run_dir, owner.title)
    recorder, phases = begin_recording(owner, config, API_SERVER_RING_BYTES)
    recorder.record(TelemetrySet(server.trace_detail_level, server.sampling.rate, time.monotonic_ns()))
    box = NewsBox(owner)
    with startup_part("import web framework"):
        import_module("fastapi")
    from vllm_obs.engine.open_files import raise_file_limit
    from vllm_obs.server.attached_lifecycle import AttachedLifecycle

    raise_file_limit(server.limits.max_num_connections)
    phases.end("import server")
    MemorySamples(owner.title, recorder).added("import server", "libraries")
    code = AttachedLifecycle(settings, recorder, box).serve_for(owner, phases)
    recorder.close()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    run_child(run_api_server)

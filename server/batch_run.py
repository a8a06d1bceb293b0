"""A batch's main: that of the API server without a port, for as long as there are lines to answer."""

from typing import TYPE_CHECKING

from vllm_obs.engine.config import VllmConfig
from vllm_obs.server.batch_files import BatchFiles
from vllm_obs.server.config import ServerConfig
from vllm_obs.server.serve import ServedRun, run_server

if TYPE_CHECKING:
    from vllm_obs.server.batch_lifecycle import BatchLifecycle


def run_batch(config: VllmConfig, server: ServerConfig, files: BatchFiles, started_at: int) -> int:
    """Answer the input's lines into the output; the exit code. Nothing is written to standard output besides.

    0 every line is answered, 1 some with an error or cut off, 70 the engine died, 78 it cannot be started as
    configured. `started_at` is the monotonic moment the start-up time is counted from. Call it from the main
    thread.
    """
    return run_server(
        ServedRun(config, server, started_at),
        _lifecycle_class,
        lambda lifecycle, begun_at, phases: lifecycle.run_batch(files, begun_at, phases),
    )


def _lifecycle_class() -> "type[BatchLifecycle]":
    from vllm_obs.server.batch_lifecycle import BatchLifecycle

    return BatchLifecycle

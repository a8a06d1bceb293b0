"""The API server's main: the engine is started first, so that it loads while the HTTP side is imported."""

import socket
import sys
import time

from vllm_obs.engine.client_async import AsyncMPClient
from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.errors import ConfigError, StartupError
from vllm_obs.engine.log import configure_logging
from vllm_obs.engine.recording import make_recorder
from vllm_obs.server.config import ServerConfig


def run(config: VllmConfig, server: ServerConfig, sock: socket.socket, started_at: int | None = None) -> int:
    """Serve on the bound socket until told to stop; the exit code.

    0 stopped and drained, 1 stopped with work cut off, 70 the engine died, 78 it cannot be started as configured.
    `started_at` is the monotonic moment the start-up time is counted from. Call it from the main thread.
    """
    started_at = started_at or time.monotonic_ns()
    configure_logging("APIServer")
    recorder = make_recorder(config.observability)
    try:
        client = AsyncMPClient.launch(config, recorder)
    except (ConfigError, StartupError) as error:
        return _fail(error)
    try:
        from vllm_obs.server.lifecycle import Lifecycle

        return Lifecycle(config, server, client, recorder).run(sock, started_at)
    except (ConfigError, StartupError) as error:
        return _fail(error)
    finally:
        client.shutdown()


def _fail(error: ConfigError | StartupError) -> int:
    """Say why in one line, whatever the error's own words look like."""
    print("vllm-obs:", *str(error).split(), file=sys.stderr, flush=True)
    return error.exit_code

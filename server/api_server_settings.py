"""ApiServerSettings: what the launcher tells one of its API servers at the start, over the pipe."""

import socket
from dataclasses import dataclass, replace
from typing import Any

from vllm_obs.engine.config import VllmConfig, from_wire, to_wire
from vllm_obs.engine.engine_sockets import Route
from vllm_obs.server.config import ServerConfig
from vllm_obs.server.trace_environment import Sampling, TraceEnvironment


@dataclass(frozen=True)
class ApiServerSettings:
    """`route` has the index and the life by which engines know this client; `handover` brings its connections."""

    config: VllmConfig
    server: ServerConfig
    route: Route
    handover: socket.socket

    @classmethod
    def of(cls, values: dict[str, Any]) -> "ApiServerSettings":
        """From what `settings_to_wire` made."""
        handover = socket.socket(fileno=values["handover_fd"])
        handover.set_inheritable(False)
        server: ServerConfig = from_wire(ServerConfig, values["server"])
        environment = _trace_environment(*server.trace_environment)
        return cls(
            from_wire(VllmConfig, values["config"]),
            replace(server, trace_environment=environment),
            Route(server.client_index, client_life=values["client_life"]),
            handover,
        )


def settings_to_wire(
    config: VllmConfig, server: ServerConfig, client_life: int, handover_fd: int
) -> dict[str, Any]:
    """Plain values. The keys are among them: they go over a pipe that only the child reads."""
    return {
        "config": to_wire(config),
        "server": to_wire(server),
        "client_life": client_life,
        "handover_fd": handover_fd,
    }


def _trace_environment(has_endpoint: bool, is_off: bool, sampling: Any) -> TraceEnvironment:
    """Named again: on the pipe it was a list."""
    return TraceEnvironment(has_endpoint, is_off, None if sampling is None else Sampling(*sampling))

"""What an API server is told at its start is what its launcher has."""

import socket
from dataclasses import replace
from typing import Any

import msgpack
from fake_executor import tiny_config

from vllm_obs.engine.engine_sockets import Route
from vllm_obs.server.api_server_settings import ApiServerSettings, settings_to_wire
from vllm_obs.server.config import Limits, ServerConfig
from vllm_obs.server.profile_config import ProfilerConfig
from vllm_obs.server.trace_environment import Sampling, TraceEnvironment


def told(server: ServerConfig, life: int = 0) -> ApiServerSettings:
    near, far = socket.socketpair()
    with near:
        values: Any = msgpack.unpackb(msgpack.packb(settings_to_wire(CONFIG, server, life, far.detach())))
        settings = ApiServerSettings.of(values)
        settings.handover.close()
    return settings


CONFIG = replace(tiny_config(), run_dir="/run/here")


def test_everything_arrives() -> None:
    server = ServerConfig(
        api_keys=("one", "two"),
        api_key_names=("first", ""),
        api_server_count=3,
        client_index=2,
        allowed_origins=("https://a", "https://b"),
        limits=Limits(max_body_bytes=5),
        trace_environment=TraceEnvironment(True, False, Sampling(0.5, False)),
        profiler_config=ProfilerConfig(is_open=True, options=("stack",)),
    )
    settings = told(server, life=4)
    assert (settings.config, settings.server) == (CONFIG, server)
    assert settings.route == Route(client_index=2, client_life=4)
    assert settings.server.role == "APIServer_2"
    assert settings.server.sampling.rate == 0.5


def test_what_was_not_said_of_traces_is_not_said() -> None:
    assert told(ServerConfig()).server == ServerConfig()

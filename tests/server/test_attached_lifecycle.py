"""A server that takes another's place waits for no engine, and one that cannot report to its launcher ends."""

import asyncio
import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from http_app import model_config
from in_loop import in_loop

from vllm_obs.engine.engine_sockets import Route
from vllm_obs.engine.errors import StartupError
from vllm_obs.server.api_server_settings import ApiServerSettings
from vllm_obs.server.attached_engines import AttachedEngines
from vllm_obs.server.attached_lifecycle import AttachedLifecycle
from vllm_obs.server.config import ServerConfig
from vllm_obs.server.engine_news import NewsBox
from vllm_obs.server.launcher_messages import ServerStatus
from vllm_obs.telemetry.recorder import MemoryRecorder


class SilentOwner:
    """Tells of no engine, and takes no reports."""

    def on_order(self, kind: str, callback: Any) -> None:
        """Nothing comes."""

    def try_say(self, kind: str, payload: Any) -> bool:
        raise OSError("planted")


@pytest.fixture
def handover() -> Iterator[socket.socket]:
    near, far = socket.socketpair()
    with near, far:
        yield near


def made(handover: socket.socket, life: int) -> AttachedLifecycle:
    config = model_config()
    config = replace(config, parallel=replace(config.parallel, data_parallel_size=2))
    settings = ApiServerSettings(config, ServerConfig(startup_timeout=0.05), Route(1, client_life=life), handover)
    return AttachedLifecycle(settings, MemoryRecorder(), NewsBox(SilentOwner()))  # type: ignore[arg-type]


@in_loop
async def test_only_at_the_first_start_all_engines_are_waited_for(handover: socket.socket) -> None:
    with pytest.raises(StartupError, match=r"no engine was there within 0\.05 s"):
        made(handover, life=0)
    again = made(handover, life=1)
    assert [place.is_up for place in again._client.places] == [False, False]


@in_loop
async def test_a_server_whose_reports_fail_ends(handover: socket.socket) -> None:
    server: Any = made(handover, life=1)
    server._owner = SilentOwner()
    server._handed = handover
    server._engines = AttachedEngines(server._api, server._client, server._attachments)
    server._status = lambda: ServerStatus("ready", 0, 0, 0, [])
    server._reporting = asyncio.create_task(server._report())
    server._reporting.add_done_callback(server._see_report_end)
    await asyncio.wait({server._reporting})
    await asyncio.sleep(0)
    assert server._engines._failed.result() == "what reports to the launcher failed"

"""A server that takes another's place waits for no engine, and one that cannot report to its launcher ends."""

import asyncio
import socket
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from http_app import model_config
from in_loop import in_loop

from vllm_obs.engine.engine_sockets import Route
from vllm_obs.engine.errors import StartupError
from vllm_obs.engine.frontend.crash_suspects import Suspect
from vllm_obs.server import attached_lifecycle
from vllm_obs.server.api_server_settings import ApiServerSettings
from vllm_obs.server.attached_engines import AttachedEngines
from vllm_obs.server.attached_lifecycle import AttachedLifecycle
from vllm_obs.server.config import ServerConfig
from vllm_obs.server.engine_news import NewsBox
from vllm_obs.server.launcher_messages import DIGEST_BYTES, ServerStatus
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


class ListeningOwner(SilentOwner):
    """Takes reports, and keeps how many connections each told of."""

    def __init__(self) -> None:
        self.num_connections: list[int] = []

    def try_say(self, kind: str, payload: Any) -> bool:
        self.num_connections.append(payload[2])
        return True


@in_loop
async def test_somebody_who_comes_to_a_server_at_rest_is_told_of_before_its_next_look(
    handover: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attached_lifecycle, "REST_SECONDS", 1000.0)
    server: Any = made(handover, life=1)
    owner = server._owner = ListeningOwner()
    server._handed = handover
    taken: list[socket.socket] = []
    server._http = SimpleNamespace(take=taken.append)
    server._status = lambda: ServerStatus("ready", len(taken), len(taken), 0, [])
    server._reporting = asyncio.create_task(server._report())
    while not owner.num_connections:
        await asyncio.sleep(0)
    server._take_connection(handover)
    async with asyncio.timeout(10.0):
        while owner.num_connections != [0, 1]:
            await asyncio.sleep(0.01)
    server._reporting.cancel()


@in_loop
async def test_a_server_with_connections_that_ask_for_nothing_rests_until_one_is_closed(
    handover: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attached_lifecycle, "REST_SECONDS", 1000.0)
    server: Any = made(handover, life=1)
    owner = server._owner = ListeningOwner()
    num_open, looks = [3], list[int]()

    def status() -> ServerStatus:
        looks.append(num_open[0])
        return ServerStatus("ready", 3, num_open[0], 0, [])

    server._status = status
    server._reporting = asyncio.create_task(server._report())
    await asyncio.sleep(5 * attached_lifecycle.BUSY_REPORT_SECONDS)
    num_open[0] = 2
    server._is_woken.set()
    async with asyncio.timeout(10.0):
        while owner.num_connections != [3, 2]:
            await asyncio.sleep(0.01)
    assert looks == [3, 2]
    server._reporting.cancel()


@in_loop
async def test_the_launcher_hears_that_the_loop_goes_round_also_when_nothing_changes(
    handover: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attached_lifecycle, "SIGN_SECONDS", 0.05)
    monkeypatch.setattr(attached_lifecycle, "REST_SECONDS", 0.01)
    server: Any = made(handover, life=1)
    owner = server._owner = ListeningOwner()
    server._status = lambda: ServerStatus("ready", 0, 0, 0, [])
    server._reporting = asyncio.create_task(server._report())
    async with asyncio.timeout(10.0):
        while len(owner.num_connections) < 3:
            await asyncio.sleep(0.01)
    server._reporting.cancel()


@in_loop
async def test_streams_of_a_dead_engine_wait_until_it_is_judged_but_not_for_ever(
    handover: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    server: Any = made(handover, life=1)
    for payload in (None, b"d" * DIGEST_BYTES):
        waiting = asyncio.create_task(server._wait_judged())
        await asyncio.sleep(0.01)
        assert not waiting.done()
        server._hear_who_is_blamed(payload)
        await waiting
    monkeypatch.setattr(attached_lifecycle, "JUDGED_SECONDS", 0.01)
    await server._wait_judged()


@in_loop
@pytest.mark.parametrize("num_lost", [0, 1])
async def test_that_all_suspects_were_told_is_said_only_when_they_were(
    handover: socket.socket, num_lost: int
) -> None:
    server: Any = made(handover, life=1)
    told: list[int] = []

    def try_say(kind: str, rows: list[Any]) -> bool:
        told.append(len(rows))
        return len(told) > num_lost

    server._owner = SimpleNamespace(try_say=try_say)
    server._tell_suspects([Suspect(bytes([number]) * DIGEST_BYTES, True, False) for number in range(70)])
    assert told == ([64, 6] if num_lost else [64, 6, 0])
    server._tell_suspects([])
    assert told[-1] == 0

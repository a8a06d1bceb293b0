"""The manager hears of each phase, and gives up on a server whose engine is dead or stands still for long."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from fake_engine import FakeEngine
from http_app import Served, served
from notify_socket import NotifySocket, notify_socket

from vllm_obs.server.service_notify import ServiceNotify
from vllm_obs.server.service_watch import STALLED_SECONDS, ServiceWatch

SOON = 20.0


Scene = Callable[[Served, ServiceWatch, NotifySocket], Coroutine[Any, Any, None]]


def play(scene: Scene, **variables: str) -> None:
    async def main() -> None:
        with notify_socket() as manager:
            async with served(FakeEngine(lambda request: [30])) as app:
                service = ServiceNotify.of({"NOTIFY_SOCKET": manager.name, **variables})
                watch = ServiceWatch(app.api, service)
                try:
                    await scene(app, watch, manager)
                finally:
                    watch.stop()

    asyncio.run(main())


def test_it_hears_of_the_start_and_of_the_end() -> None:
    async def scene(app: Served, watch: ServiceWatch, manager: NotifySocket) -> None:
        assert manager.received() == ["STATUS=ready", "READY=1"]
        watch.look(1.0)
        assert manager.received() == []
        app.api.drain()
        watch.look(2.0)
        assert manager.received() == ["STATUS=draining", "STOPPING=1"]

    play(scene)


def test_ready_is_told_again_until_it_was_taken() -> None:
    async def main() -> None:
        async with served(FakeEngine(lambda request: [30])) as app:
            with notify_socket() as manager:
                service = ServiceNotify(manager.name)
            watch = ServiceWatch(app.api, service)
            watch.look(1.0)
            assert not watch._is_told_ready
            watch.stop()

    asyncio.run(main())


def test_it_gets_signs_of_life_from_the_loop() -> None:
    async def scene(app: Served, watch: ServiceWatch, manager: NotifySocket) -> None:
        num_signs, deadline = 0, time.monotonic() + SOON
        while num_signs < 4:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
            num_signs += manager.received().count("WATCHDOG=1")

    play(scene, WATCHDOG_USEC="1000000")


def test_a_stall_is_forgiven_for_a_while_and_a_dead_engine_is_not() -> None:
    async def scene(app: Served, watch: ServiceWatch, manager: NotifySocket) -> None:
        def signs_at(now: float) -> int:
            watch.look(now)
            return manager.received().count("WATCHDOG=1")

        now = time.monotonic() + 1000
        assert manager.received() == ["STATUS=ready", "READY=1", "WATCHDOG=1"]
        app.api.is_stalled = True
        assert signs_at(now) == 1
        assert signs_at(now + STALLED_SECONDS - 1) == 1
        assert signs_at(now + STALLED_SECONDS + 10) == 0
        app.api.is_stalled = False
        assert signs_at(now + STALLED_SECONDS + 20) == 1
        app.engine.die("killed by signal 9")
        await app.llm.wait_dead()
        assert signs_at(now + STALLED_SECONDS + 40) == 0

    play(scene, WATCHDOG_USEC="4000000")


def test_where_no_manager_listens_nothing_is_looked_at() -> None:
    async def main() -> None:
        async with served(FakeEngine(lambda request: [30])) as app:
            watch = ServiceWatch(app.api, ServiceNotify())
            assert watch._timer is None
            watch.stop()

    asyncio.run(main())

"""Launcher: the root of several API servers; it owns the port, them, engines and Observer, and serves nothing."""

import asyncio
import itertools
import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from vllm_obs.engine.child import STOP_TIMEOUT_SECONDS
from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.engine_titles import ENGINE_MODULE
from vllm_obs.engine.messages import EngineFacts
from vllm_obs.server.acceptor import Acceptor
from vllm_obs.server.api_server_place import API_SERVER_MODULE, ServedBy
from vllm_obs.server.api_server_watch import ApiServerWatch
from vllm_obs.server.api_servers import ApiServers
from vllm_obs.server.banner import address, port_of, ready_lines
from vllm_obs.server.beat import until_beat
from vllm_obs.server.config import ServerConfig
from vllm_obs.server.engine_keeper import KeepLimits
from vllm_obs.server.exit_codes import EXIT_BROKEN, EXIT_CUT_OFF, EXIT_DRAINED
from vllm_obs.server.inspector_notice import InspectorNotice
from vllm_obs.server.launched_engine import LaunchedBy
from vllm_obs.server.launched_engines import LaunchedEngines
from vllm_obs.server.launcher_messages import CUT_OFF, DRAIN, OPEN, PROFILE, RELOAD, TELEMETRY
from vllm_obs.server.observer import Observer, Order, TelemetryOrder
from vllm_obs.server.observer_settings import inspect_port
from vllm_obs.server.phase import Phase, best_phase
from vllm_obs.server.polling import wait_until
from vllm_obs.server.service_notify import ServiceNotify
from vllm_obs.server.service_watch import ServiceWatch
from vllm_obs.server.signals import StopSignals
from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.console import STDOUT, tell
from vllm_obs.telemetry.recorder import ProcessRecorder
from vllm_obs.telemetry.records import ProcessReady, TelemetrySet

logger = logging.getLogger(__name__)

ROLE = "Launcher"
LAST_WORDS_SECONDS = 1.0
OPEN_SECONDS = 5.0
"""How long API servers that were told to let requests in may take until people are told that they do."""
SERVER_END_SECONDS = 3.0
"""How long an API server may take to end that has nothing left to finish."""
HEARTBEAT_SECONDS = 0.25
"""Well below the least `--stall-timeout`, by which the watchdog judges."""
BEATS_A_LOOK = 4
"""The API servers are given three times that long, and a look costs more than a beat."""


class Launcher:
    """Runs on one event loop, in the main thread: the kernel ends children with the thread that started them."""

    def __init__(
        self, config: VllmConfig, server: ServerConfig, recorder: ProcessRecorder, observer: Observer | None = None
    ) -> None:
        self.config = config
        self.server = server
        self.on_ready: Callable[[], None] = lambda: None
        """Called once all is ready and said to be."""
        self.engine_module = ENGINE_MODULE
        self.api_server_module = API_SERVER_MODULE
        self._recorder = recorder
        self._observer = observer
        self._inspector = InspectorNotice()
        self._last_words = ""
        self._is_ready = False
        self._is_draining = False

    def run(self, listener: socket.socket, engine_indices: list[int], started_at: int) -> int:
        """Serve on the bound socket until told to stop; the exit code.

        ConfigError or StartupError when an engine or an API server cannot start.
        """
        with asyncio.Runner() as runner:
            return runner.run(self._run(listener, engine_indices, started_at))

    async def _run(self, listener: socket.socket, engine_indices: list[int], started_at: int) -> int:
        self._signals = StopSignals()
        self._signals.install()
        self._broken: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._acceptor = Acceptor(listener, self._acceptor_failed(asyncio.get_running_loop()))
        num_servers = self.server.api_server_count
        config = replace(self.config, scheduler=replace(self.config.scheduler, num_clients=num_servers))
        served_by = ServedBy(config, self.server, self._recorder, self._acceptor, self.api_server_module)
        self._api_servers = ApiServers(served_by, num_servers, lambda index: self._engines.forget(index))
        self._engines = LaunchedEngines(self._launched_by(num_servers))
        service = ServiceNotify.of(os.environ)
        manager = ServiceWatch(self, service)
        watch = ApiServerWatch(self._api_servers.places, self.server.stall_timeout)
        heart = asyncio.create_task(self._beat(watch), name="heartbeat")
        self._take_hangups(service)
        try:
            code = await self._serve(listener, engine_indices, started_at)
        finally:
            self._recorder.doing(Activity.STOPPING)
            await self._end()
            heart.cancel()
            manager.stop()
            if self._observer is not None:
                await self._observer.stop(at_once=self._signals.second.is_set())
            self._signals.remove()
        if self._last_words:
            tell(self._last_words)
        return EXIT_CUT_OFF if code == EXIT_DRAINED and self._signals.second.is_set() else code

    async def _serve(self, listener: socket.socket, engine_indices: list[int], started_at: int) -> int:
        self._engines.start(self.config, engine_indices)
        self._api_servers.start()
        self._start_observer(listener)
        facts = await self._signals.unless_first(self._all_ready())
        if facts is None:
            return EXIT_DRAINED
        self._open(listener, facts, started_at)
        cause = await self._signals.unless_first(self._wait_broken())
        return await (self._drain() if cause is None else self._bury(cause))

    def _launched_by(self, num_servers: int) -> LaunchedBy:
        server, servers = self.server, self._api_servers
        limits = KeepLimits(server.engine_restarts, server.startup_timeout, self.config.run_dir)
        return LaunchedBy(
            recorder=self._recorder,
            tell=servers.tell,
            limits=limits,
            num_clients=num_servers,
            num_sequences=servers.num_sequences,
            module=self.engine_module,
        )

    async def _all_ready(self) -> list[EngineFacts]:
        """The engines' facts once they and all API servers are ready. ConfigError or StartupError if one cannot.

        So, too, if one dies meanwhile that was ready already: nobody has been let in yet.
        """
        engines = self._engines.readying()
        losses = self._engines.losses(engines)
        servers = asyncio.ensure_future(self._api_servers.ready())
        together = asyncio.gather(servers, *engines)
        try:
            ends: set[asyncio.Future[Any]] = {together, *losses}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if servers.done() and servers.exception() is not None:  # perhaps an engine's fault, which tells more
                causes: set[asyncio.Future[Any]] = {*engines, *losses}
                await asyncio.wait(causes, timeout=LAST_WORDS_SECONDS, return_when=asyncio.FIRST_EXCEPTION)
            facts = [engine.result() for engine in engines if engine.done()]
            for loss in losses:
                if loss.done():
                    loss.result()
            await servers
            return facts
        finally:
            tasks: list[asyncio.Future[Any]] = [*losses, *engines, servers, together]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _open(self, listener: socket.socket, facts: list[EngineFacts], started_at: int) -> None:
        """Let requests in, by all servers at once: from now on whoever dies is replaced."""
        self._is_ready = True
        self._api_servers.order(OPEN, stays=True)
        self._recorder.record(ProcessReady(ROLE, os.getpid(), time.monotonic_ns()))
        self._recorder.doing(Activity.SERVING)
        lines = ready_lines(self, facts, listener, started_at)
        self._saying = asyncio.create_task(self._say_ready(lines), name="say ready")

    async def _say_ready(self, lines: list[str]) -> None:
        """Tell people, once the servers have heard it."""
        await wait_until(lambda: self._api_servers.are_open, OPEN_SECONDS)
        STDOUT.say("\n".join(lines))
        self._inspector.allow()
        self.on_ready()

    def _acceptor_failed(self, loop: asyncio.AbstractEventLoop) -> Callable[[str], None]:
        def fail(cause: str) -> None:
            if not self._broken.done():
                self._broken.set_result(cause)

        def call(cause: str) -> None:
            """Called by the acceptor's thread."""
            loop.call_soon_threadsafe(fail, cause)

        return call

    async def _wait_broken(self) -> str:
        """The cause, once an engine or an API server cannot be kept alive, or the port is not listened to."""
        engines = asyncio.ensure_future(self._engines.keep())
        servers = asyncio.ensure_future(self._api_servers.given_up())
        try:
            done, _ = await asyncio.wait({engines, servers, self._broken}, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            engines.cancel()
            servers.cancel()
            await asyncio.gather(engines, servers, return_exceptions=True)

    @property
    def phase(self) -> Phase:
        """What the servers do together: the best that one of them does."""
        if self._is_draining:
            return Phase.DRAINING
        if not self._is_ready:
            return Phase.LOADING
        return best_phase(self._api_servers.phases)

    async def _drain(self) -> int:
        """All let no request in and finish, in parallel, each within its time; the exit code."""
        self._recorder.doing(Activity.STOPPING)
        self._is_draining = True
        timeout = self.server.shutdown_timeout
        self._api_servers.stop_keeping()
        logger.info("shutting down: %d request(s) have %g s to finish", self._api_servers.num_open, timeout)
        self._api_servers.order(DRAIN)
        is_asked_twice = self._signals.second.is_set
        longest = timeout + 2 * LAST_WORDS_SECONDS
        await wait_until(lambda: self._api_servers.are_drained or is_asked_twice(), longest)
        if not self._api_servers.are_drained:
            self._api_servers.order(CUT_OFF)
            await wait_until(lambda: self._api_servers.are_drained, 2 * LAST_WORDS_SECONDS)
        await self._end_servers()
        has_cut_off = any(self._api_servers.exit_codes)
        logger.info("stopped: %s", "requests were cut off" if has_cut_off else "all requests are finished")
        return EXIT_CUT_OFF if has_cut_off else EXIT_DRAINED

    async def _bury(self, cause: str) -> int:
        """It cannot go on: who is still open is told."""
        self._last_words = cause
        logger.error("%s", cause)
        self._api_servers.stop_keeping()
        self._api_servers.order(CUT_OFF)
        await wait_until(lambda: self._api_servers.are_drained, 2 * LAST_WORDS_SECONDS)
        return EXIT_BROKEN

    async def _end(self) -> None:
        """End the API servers, then the engines, whose clients they are; signals are heard meanwhile."""
        self._api_servers.stop_keeping()
        await self._end_servers()
        self._acceptor.close()
        self._engines.ask_to_stop()
        seconds = STOP_TIMEOUT_SECONDS if self._is_ready else 0
        await wait_until(lambda: self._engines.have_stopped or self._signals.second.is_set(), seconds)
        self._engines.close()

    async def _end_servers(self) -> None:
        self._acceptor.is_ending = True
        self._api_servers.ask_to_stop()
        seconds = SERVER_END_SECONDS if self._is_ready else 0
        await wait_until(lambda: self._api_servers.have_stopped, seconds)
        self._api_servers.close()

    def _start_observer(self, listener: socket.socket) -> None:
        if self._observer is None:
            return
        port = inspect_port(self.server, port_of(listener))
        self._observer.start(address(self, listener), port, self._obey)
        self._inspector.follow(self._observer)

    def _obey(self, order: Order) -> None:
        """Pass on what was ordered through the inspector. ValueError for an order out of its range."""
        if isinstance(order, TelemetryOrder):
            order.check()
            self._recorder.record(TelemetrySet(*order, set_at=time.monotonic_ns()))
            self._api_servers.order(TELEMETRY, order._asdict(), stays=True)
        elif not self._api_servers.order_one(PROFILE, order._asdict()):
            raise ValueError("no API server is ready to take a profile")

    def _take_hangups(self, service: ServiceNotify) -> None:
        """Where there is a key file, SIGHUP says that it has changed."""

        def reload() -> None:
            service.begin_reload()
            self._api_servers.order(RELOAD)
            service.end_reload()

        if self.server.api_key_file is not None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)

    async def _beat(self, watch: ApiServerWatch) -> None:
        for beat in itertools.count():
            now = time.monotonic_ns()
            self._recorder.heartbeat(now)
            if self._is_ready and not self._is_draining and beat % BEATS_A_LOOK == 0:
                try:
                    watch.look(now)
                except Exception:  # the launcher has more to do than to watch
                    logger.exception("the API servers could not be looked at")
            await asyncio.sleep(until_beat(HEARTBEAT_SECONDS))

"""The life of one API server: load, serve, drain or die, and with which exit code."""

import asyncio
import contextlib
import gc
import logging
import os
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

import uvloop

from vllm_obs.engine.child import STOP_TIMEOUT_SECONDS
from vllm_obs.engine.client_async import AsyncMPClient
from vllm_obs.engine.client_dp import DPLBAsyncMPClient
from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.errors import VllmObsError
from vllm_obs.engine.frontend.async_llm import AsyncLLM
from vllm_obs.engine.messages import FinishReason
from vllm_obs.engine.startup_phases import StartupPhases
from vllm_obs.server.app import build_app
from vllm_obs.server.banner import address, port_of, ready_lines
from vllm_obs.server.config import ServerConfig
from vllm_obs.server.engine_loading import load_engine
from vllm_obs.server.engine_supervisor import EngineSupervisor
from vllm_obs.server.exit_codes import EXIT_BROKEN, EXIT_CUT_OFF, EXIT_DRAINED
from vllm_obs.server.freed_memory import return_large_memory
from vllm_obs.server.http_server import HttpServer, end_cause
from vllm_obs.server.inspector_notice import InspectorNotice
from vllm_obs.server.key_watch import KeyWatch
from vllm_obs.server.loop_watch import LoopWatch
from vllm_obs.server.observer import Observer, Order, TelemetryOrder
from vllm_obs.server.observer_settings import inspect_port
from vllm_obs.server.polling import wait_until
from vllm_obs.server.progress_watch import ProgressWatch
from vllm_obs.server.request_record import record_refused
from vllm_obs.server.service_notify import ServiceNotify
from vllm_obs.server.service_watch import ServiceWatch
from vllm_obs.server.signals import StopSignals
from vllm_obs.server.state import ApiServer, Engine
from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.console import STDOUT, tell
from vllm_obs.telemetry.recorder import ProcessRecorder
from vllm_obs.telemetry.records import ProcessReady, TelemetrySet

logger = logging.getLogger(__name__)

AT_ONCE_SECONDS = 0.1
LAST_WORDS_SECONDS = 1.0
"""How long open replies may take to send their error, and how long after the second signal."""


class EnginesKept(Protocol):
    """Who sees to it that there are engines, as EngineSupervisor."""

    client: DPLBAsyncMPClient

    @property
    def engines(self) -> list[AsyncMPClient]:
        """The clients of all engines, started ones included."""

    async def keep(self) -> str:
        """Keep them alive; why there is none any more."""


class Lifecycle:
    """Runs one server on one event loop, in the main thread."""

    def __init__(
        self,
        config: VllmConfig,
        server: ServerConfig,
        client: DPLBAsyncMPClient,
        recorder: ProcessRecorder,
        observer: Observer | None = None,
    ) -> None:
        self._api = ApiServer(config, server, recorder)
        self._supervisor: EnginesKept = EngineSupervisor(self._api, client, recorder)
        self._role = server.role
        self._recorder = recorder
        self._observer = observer
        self._progress: ProgressWatch | None = None
        self._started_at = time.monotonic_ns()
        self._last_words = ""
        self._outcome = ""
        self._inspector = InspectorNotice()
        self.on_ready: Callable[[], None] = lambda: None
        """Called once the server has said that it is ready."""

    def run(self, sock: socket.socket, started_at: int, phases: StartupPhases | None = None) -> int:
        """Serve until told to stop; the exit code. ConfigError or StartupError when the engine cannot start."""
        return_large_memory()
        self._started_at = started_at
        self._phases = phases or StartupPhases(self._role, self._recorder, started_at)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(self._run(sock, started_at))

    async def _run(self, sock: socket.socket, started_at: int) -> int:
        self._signals = self._make_signals()
        self._signals.install()
        watch = LoopWatch(self._api)
        service = self._make_service()
        manager = ServiceWatch(self._api, service)
        keys = self._keys = KeyWatch(self._api.keys, self._api.server, service)
        keys.start()
        try:
            code = await self._serve(sock, started_at)
        finally:
            await self._api.profiles.close()
            await self._end_engine()
            watch.stop()
            keys.stop()
            manager.stop()
            if self._progress is not None:
                self._progress.stop()
            if self._observer is not None:
                await self._observer.stop(at_once=self._signals.second.is_set())
            self._signals.remove()
            gc.unfreeze()
        if self._outcome:
            logger.info("stopped: %s", self._outcome)
        self._say_last_words()
        return EXIT_CUT_OFF if code == EXIT_DRAINED and self._signals.second.is_set() else code

    def _make_signals(self) -> StopSignals:
        """What tells this server to end."""
        return StopSignals()

    def _make_service(self) -> ServiceNotify:
        """Whoever wants to know how the service is."""
        return ServiceNotify.of(os.environ)

    def _say_last_words(self) -> None:
        """They have been said before, but others may have said something since."""
        if self._last_words:
            tell(self._last_words)

    async def _listen(self, sock: socket.socket) -> "asyncio.Task[None]":
        """Take connections from now on; the task ends with the HTTP server."""
        return await self._http.start(sock)

    async def _serve(self, sock: socket.socket, started_at: int) -> int:
        api = self._api
        self._http = HttpServer(build_app(api), api.server, partial(record_refused, api), api.keys)
        self._api.count_connections = self._http.count_connections
        serving = await self._listen(sock)
        self._phases.end("listen")
        self._start_observer(sock)
        try:
            engine = await self._signals.unless_first(self._load())
            if engine is None:
                return EXIT_DRAINED
            self._open(engine)
            self._say_ready(engine, sock, started_at)
            cause = await self._signals.unless_first(self._wait_broken(serving))
            return await (self._drain(self._api.engine.llm) if cause is None else self._bury(cause))
        finally:
            self._recorder.doing(Activity.STOPPING)
            self._http.stop(at_once=self._signals.second.is_set())
            await asyncio.wait({serving}, timeout=2 * LAST_WORDS_SECONDS)

    def _open(self, engine: Engine) -> None:
        """Let requests in."""
        self._api.engine_ready(engine)
        self._api.engine_start_seconds = (time.monotonic_ns() - self._started_at) / 1e9
        self._progress = ProgressWatch(self._api, self._nudge)
        self._phases.end("open")
        self._recorder.record(ProcessReady(self._role, os.getpid(), time.monotonic_ns()))
        self._recorder.doing(Activity.SERVING)

    def _nudge(self) -> None:
        """Send the engine a message that asks for nothing; whether it can be sent does not matter."""

        async def send() -> None:
            with contextlib.suppress(VllmObsError):
                await self._supervisor.client.abort_requests((), FinishReason.ABORT)

        self._nudging = asyncio.ensure_future(send())

    def _start_observer(self, sock: socket.socket) -> None:
        """Start it beside the loading engine; nobody waits for it."""
        if self._observer is None:
            return
        port = inspect_port(self._api.server, port_of(sock))
        self._observer.start(address(self._api, sock), port, self._obey)
        self._phases.end("start observer")
        self._inspector.follow(self._observer)

    def _obey(self, order: Order) -> None:
        """Do what was ordered through the inspector. ValueError for an order out of its range."""
        if isinstance(order, TelemetryOrder):
            self._set_telemetry(order)
        else:
            self._api.profiles.obey(order)

    def _set_telemetry(self, order: TelemetryOrder) -> None:
        """Trace as ordered from now on. ValueError for an order out of its range."""
        order.check()
        if self._api.tracing is not None:
            self._api.tracing.sample_rate = order.sample_rate
            self._api.tracing.is_on = order.detail_level > 0
        self._recorder.record(TelemetrySet(*order, set_at=time.monotonic_ns()))

    def _say_ready(self, engine: Engine, sock: socket.socket, started_at: int) -> None:
        """Tell people that requests are let in."""
        STDOUT.say("\n".join(ready_lines(self._api, engine.client.engines, sock, started_at)))
        self._inspector.allow()
        self.on_ready()

    async def _load(self) -> Engine:
        """The engine once it is ready."""
        return await load_engine(self._api, self._supervisor.client, self._phases)

    async def _wait_broken(self, serving: "asyncio.Task[None]") -> str:
        """The cause, once the engine cannot be kept alive or the HTTP server has ended that nobody told to."""
        kept = asyncio.ensure_future(self._supervisor.keep())
        try:
            await asyncio.wait({kept, serving}, return_when=asyncio.FIRST_COMPLETED)
            return kept.result() if kept.done() else end_cause(serving)
        finally:
            kept.cancel()

    async def _bury(self, cause: str) -> int:
        """The streams of a dead engine have been told; wait until the words are out."""
        self._last_words = cause
        logger.error("%s", cause)
        await wait_until(self._is_idle, LAST_WORDS_SECONDS)
        return EXIT_BROKEN

    async def _drain(self, llm: AsyncLLM) -> int:
        """Let no request in, let the running ones finish until the deadline or the second signal."""
        self._recorder.doing(Activity.STOPPING)
        timeout = self._api.server.shutdown_timeout
        self._api.drain()
        if llm.dead_cause is not None:  # another was being started; who was cut off by the death has been told
            await wait_until(self._is_idle, LAST_WORDS_SECONDS)
            return self._ended(self._api.num_open)
        logger.info("shutting down: %d request(s) have %g s to finish", self._api.num_open, timeout)
        await wait_until(
            lambda: self._is_idle() or self._signals.second.is_set() or llm.dead_cause is not None, timeout
        )
        if self._is_idle() and llm.dead_cause is None:
            return self._ended(0)
        num_cut_off = self._api.num_open
        logger.warning("cutting off %d request(s)", num_cut_off)
        llm.end_open()
        if not self._signals.second.is_set():
            await wait_until(lambda: self._is_idle() or self._signals.second.is_set(), LAST_WORDS_SECONDS)
        await wait_until(self._is_idle, AT_ONCE_SECONDS)
        self._ended(num_cut_off)
        return EXIT_CUT_OFF

    def _ended(self, num_cut_off: int) -> int:
        """Keep what is to be said at the very end; the exit code."""
        self._outcome = f"{num_cut_off} request(s) were cut off" if num_cut_off else "all requests are finished"
        return EXIT_CUT_OFF if num_cut_off else EXIT_DRAINED

    async def _end_engine(self) -> None:
        """Give the engine its time to end, unless somebody asks twice; the loop stays free to hear that."""
        engines = self._supervisor.engines
        for engine in engines:
            engine.ask_to_stop()
        second = self._signals.second
        await wait_until(
            lambda: second.is_set() or all(engine.has_stopped for engine in engines), STOP_TIMEOUT_SECONDS
        )
        for engine in engines:
            engine.shutdown(timeout_seconds=0)
        if self._api.is_engine_there:
            await self._api.engine.llm.shutdown()

    def _is_idle(self) -> bool:
        return self._api.num_open == 0

"""The life of one API server: load, serve, drain or die, and with which exit code."""

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvloop

from vllm_obs.engine.child import STOP_TIMEOUT_SECONDS
from vllm_obs.engine.client_async import AsyncMPClient
from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.frontend.async_llm import AsyncLLM
from vllm_obs.engine.frontend.chat_template import load_chat_template
from vllm_obs.engine.frontend.tokenizer import load_tokenizer
from vllm_obs.server.app import build_app
from vllm_obs.server.banner import ready_lines
from vllm_obs.server.config import ServerConfig
from vllm_obs.server.http_server import HttpServer, end_cause
from vllm_obs.server.signals import StopSignals
from vllm_obs.server.state import ApiServer, Engine
from vllm_obs.telemetry.recorder import Recorder

T = TypeVar("T")

logger = logging.getLogger(__name__)

EXIT_DRAINED = 0
EXIT_CUT_OFF = 1
EXIT_BROKEN = 70

AT_ONCE_SECONDS = 0.1
LAST_WORDS_SECONDS = 1.0
"""How long open replies may take to send their error, and how long after the second signal."""


class Lifecycle:
    """Runs one server on one event loop, in the main thread."""

    def __init__(
        self, config: VllmConfig, server: ServerConfig, client: AsyncMPClient, recorder: Recorder
    ) -> None:
        self._api = ApiServer(config, server, recorder)
        self._client = client
        self._recorder = recorder
        self._llm: AsyncLLM | None = None

    def run(self, sock: socket.socket, started_at: int) -> int:
        """Serve until told to stop; the exit code. ConfigError or StartupError when the engine cannot start."""
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(self._run(sock, started_at))

    async def _run(self, sock: socket.socket, started_at: int) -> int:
        self._signals = StopSignals()
        self._signals.install()
        try:
            code = await self._serve(sock, started_at)
        finally:
            await self._end_engine()
            self._signals.remove()
        return EXIT_CUT_OFF if code == EXIT_DRAINED and self._signals.second.is_set() else code

    async def _serve(self, sock: socket.socket, started_at: int) -> int:
        self._http = HttpServer(build_app(self._api), self._api.server)
        serving = await self._http.start(sock)
        try:
            engine = await self._unless_signalled(self._load())
            if engine is None:
                return EXIT_DRAINED
            self._api.engine_ready(engine)
            print("\n".join(ready_lines(self._api, engine.facts, sock, started_at)), flush=True)
            cause = await self._unless_signalled(_wait_broken(engine.llm, serving))
            return await (self._drain(engine.llm) if cause is None else self._bury(cause))
        finally:
            self._http.stop(at_once=self._signals.second.is_set())
            await asyncio.wait({serving}, timeout=2 * LAST_WORDS_SECONDS)

    async def _unless_signalled(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of `work`, None when the first signal comes before it."""
        task = asyncio.ensure_future(work)
        signalled = asyncio.ensure_future(self._signals.first.wait())
        await asyncio.wait({task, signalled}, return_when=asyncio.FIRST_COMPLETED)
        signalled.cancel()
        if not task.done():
            task.cancel()
        await asyncio.wait({task, signalled})
        return None if task.cancelled() else task.result()

    async def _load(self) -> Engine:
        """The engine once it is ready; the tokenizer is read meanwhile."""
        config = self._api.config
        tokenizer = await asyncio.to_thread(load_tokenizer, config.model)
        chat_template = load_chat_template(config.model, tokenizer)
        facts = await self._client.ready(self._api.server.startup_timeout)
        llm = self._llm = AsyncLLM(config, self._client, tokenizer, self._recorder)
        llm.start()
        return Engine(llm, tokenizer, chat_template, facts)

    async def _bury(self, cause: str) -> int:
        """The streams of a dead engine have been told; wait until the words are out."""
        logger.error("%s", cause)
        await self._wait_until(self._is_idle, LAST_WORDS_SECONDS)
        return EXIT_BROKEN

    async def _drain(self, llm: AsyncLLM) -> int:
        """Let no request in, let the running ones finish until the deadline or the second signal."""
        timeout = self._api.server.shutdown_timeout
        self._api.drain()
        logger.info("shutting down: %d request(s) have %g s to finish", self._api.num_open, timeout)
        await self._wait_until(
            lambda: self._is_idle() or self._signals.second.is_set() or llm.dead_cause is not None, timeout
        )
        if self._is_idle() and llm.dead_cause is None:
            return EXIT_DRAINED
        logger.warning("cutting off %d request(s)", self._api.num_open)
        llm.end_open()
        if not self._signals.second.is_set():
            await self._wait_until(lambda: self._is_idle() or self._signals.second.is_set(), LAST_WORDS_SECONDS)
        await self._wait_until(self._is_idle, AT_ONCE_SECONDS)
        return EXIT_CUT_OFF

    async def _end_engine(self) -> None:
        """Give the engine its time to end, unless somebody asks twice; the loop stays free to hear that."""
        self._client.ask_to_stop()
        await self._wait_until(
            lambda: self._client.has_stopped or self._signals.second.is_set(), STOP_TIMEOUT_SECONDS
        )
        self._client.shutdown(timeout_seconds=0)
        if self._llm is not None:
            await self._llm.shutdown()

    def _is_idle(self) -> bool:
        return self._api.num_open == 0

    async def _wait_until(self, is_over: Callable[[], bool], timeout_seconds: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        while not is_over() and time.monotonic() < deadline:
            await asyncio.sleep(0.01)


async def _wait_broken(llm: AsyncLLM, serving: "asyncio.Task[None]") -> str:
    """Return the cause once the engine has died, or the HTTP server has ended that nobody told to."""
    died = asyncio.ensure_future(llm.wait_dead())
    try:
        await asyncio.wait({died, serving}, return_when=asyncio.FIRST_COMPLETED)
        return f"the engine died: {died.result()}" if died.done() else end_cause(serving)
    finally:
        died.cancel()

"""The real application over a fake engine: in process, or behind a real socket in a thread."""

import asyncio
import functools
import socket
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import httpx
import uvloop
from fake_engine import FACTS, FakeEngine, balanced
from fastapi import FastAPI

from vllm_obs.engine.args import EngineArgs
from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.frontend.async_llm import AsyncLLM
from vllm_obs.engine.frontend.chat_template import load_chat_template
from vllm_obs.engine.frontend.tokenizer import Tokenizer, load_tokenizer
from vllm_obs.server.app import build_app
from vllm_obs.server.config import ServerConfig
from vllm_obs.server.http_server import HttpServer
from vllm_obs.server.request_record import record_refused
from vllm_obs.server.state import ApiServer, Engine
from vllm_obs.telemetry.recorder import MemoryRecorder

MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
T = TypeVar("T")


@functools.cache
def model_config() -> VllmConfig:
    """The configuration of the default model, cut to 2048 tokens."""
    return EngineArgs(max_model_len=2048, dtype="float32").create_engine_config()


@functools.cache
def tokenizer() -> Tokenizer:
    """The default model's tokenizer."""
    return load_tokenizer(model_config().model)


@dataclass
class Served:
    """A running application and what is behind it."""

    app: FastAPI
    api: ApiServer
    engine: FakeEngine
    llm: AsyncLLM
    client: httpx.AsyncClient
    recorder: MemoryRecorder

    async def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        """Post a JSON body."""
        return await self.client.post(path, json=body, headers=headers)


@asynccontextmanager
async def served(
    engine: FakeEngine,
    server: ServerConfig | None = None,
    ready: bool = True,
    run_dir: Path | None = None,
    config: VllmConfig | None = None,
    others: Sequence[FakeEngine] = (),
) -> AsyncIterator[Served]:
    """The application in this process, ready unless told otherwise; its model is the default one unless given.

    `others` are more engines beside the first.
    """
    recorder = MemoryRecorder()
    config = replace(config or model_config(), run_dir="" if run_dir is None else str(run_dir))
    api = ApiServer(config, server or ServerConfig(), recorder)
    client = balanced(engine, *others)
    llm = AsyncLLM(config, client, tokenizer(), recorder)
    llm.start()
    if ready:
        template = load_chat_template(config.model, tokenizer())
        api.engine_ready(Engine(llm, tokenizer(), template, FACTS, client))
    app = build_app(api)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=("10.0.0.1", 9))
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            yield Served(app, api, engine, llm, client, recorder)
    finally:
        await llm.shutdown()


class SocketServer:
    """The application behind uvicorn on a loopback port, in a thread with its own loop."""

    def __init__(self, seconds_a_token: float, token: int, server: ServerConfig) -> None:
        self._settings = (seconds_a_token, token, server)
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._main)
        self.listener = socket.socket()
        self.listener.bind(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.served: Served
        self.loop: asyncio.AbstractEventLoop

    def start(self) -> None:
        """Return once it listens."""
        self._thread.start()
        assert self._started.wait(20)

    def stop(self) -> None:
        """End the thread."""
        self.loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(20)
        assert not self._thread.is_alive()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something on the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(20)

    def connect(self) -> socket.socket:
        """A new connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def _main(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._run())

    async def _run(self) -> None:
        seconds_a_token, token, server = self._settings
        self.loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        engine = FakeEngine(lambda request: [token] * 100_000, seconds_a_token)
        async with served(engine, server) as self.served:
            api = self.served.api
            http = HttpServer(self.served.app, server, partial(record_refused, api), api.keys)
            self.served.api.count_connections = http.count_connections
            serving = await http.start(self.listener)
            self._started.set()
            await self._stopping.wait()
            http.stop(at_once=True)
            await serving


@contextmanager
def socket_server(
    seconds_a_token: float = 0.0, token: int = 30, server: ServerConfig | None = None
) -> Iterator[SocketServer]:
    """A `SocketServer` whose every answer is `token` (a full stop), again and again."""
    running = SocketServer(seconds_a_token, token, server or ServerConfig())
    running.start()
    try:
        yield running
    finally:
        running.stop()

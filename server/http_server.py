"""uvicorn, set up for this server: our protocol, no signals of its own."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Generator

import uvicorn
from starlette.types import ASGIApp

from vllm_obs.engine.errors import StartupError
from vllm_obs.server.access_log import show_like_our_own
from vllm_obs.server.api_keys import ApiKeys
from vllm_obs.server.beat import until_beat
from vllm_obs.server.config import ServerConfig
from vllm_obs.server.connection_room import ConnectionRoom
from vllm_obs.server.oversized_key import OversizedKeys
from vllm_obs.server.protocol import HttpProtocol
from vllm_obs.server.refused_head import RefusedHead

CLOSE_SECONDS = 1
"""How long connections may take to close once no request is left."""
DATE_SECONDS = 1.0


class HttpServer(uvicorn.Server):
    """Serves until `stop`; who tells it to is not its business."""

    def __init__(
        self,
        app: ASGIApp,
        server: ServerConfig,
        on_refused: Callable[[RefusedHead], None] = lambda refused: None,
        keys: ApiKeys | None = None,
    ) -> None:
        show_like_our_own()
        self._room: ConnectionRoom[HttpProtocol] = ConnectionRoom(server.limits.max_num_connections)
        own = {"limits": server.limits, "on_refused": staticmethod(on_refused), "room": self._room}
        if keys is not None:
            own["oversized_keys"] = OversizedKeys(keys, server.root_path, server.limits)
        config = uvicorn.Config(
            app,
            http=type("LimitedHttpProtocol", (HttpProtocol,), own),
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level=server.uvicorn_log_level,
            access_log=not server.disable_uvicorn_access_log,
            timeout_keep_alive=server.limits.keep_alive_seconds,
            timeout_graceful_shutdown=CLOSE_SECONDS,
            ssl_keyfile=server.ssl_keyfile,
            ssl_certfile=server.ssl_certfile,
            ssl_ca_certs=server.ssl_ca_certs,
            ssl_cert_reqs=server.ssl_cert_reqs,
        )
        super().__init__(config)
        self._is_stopping = asyncio.Event()
        self._adopting: set[asyncio.Task[None]] = set()
        logging.getLogger("uvicorn.error").addFilter(_is_no_chatter)

    async def start(self, sock: socket.socket) -> "asyncio.Task[None]":
        """Listen on the bound socket; the task ends with the server. StartupError when it cannot."""
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        task = asyncio.create_task(self._serve_and_close(sock), name="http server")
        while not self.started and not task.done():
            await asyncio.sleep(0.005)
        if not self.started:
            raise StartupError(end_cause(task))
        return task

    async def _serve_and_close(self, sock: socket.socket) -> None:
        try:
            await self.serve(sockets=[sock])
        except Exception:
            if self.started:
                await self.shutdown(sockets=[sock])  # uvloop cannot be closed over an open listener
            raise

    async def start_without_listener(self) -> "asyncio.Task[None]":
        """Serve what `take` is given; the task ends with the server. StartupError when it cannot."""
        task = asyncio.create_task(self.serve(sockets=[]), name="http server")
        while not self.started and not task.done():
            await asyncio.sleep(0.005)
        if not self.started:
            raise StartupError(end_cause(task))
        return task

    def take(self, connection: socket.socket) -> None:
        """Serve a connection that somebody else accepted; it does not block."""
        task = asyncio.get_running_loop().create_task(self._adopt(connection))
        self._adopting.add(task)
        task.add_done_callback(self._adopting.discard)

    async def _adopt(self, connection: socket.socket) -> None:
        try:
            loop = asyncio.get_running_loop()
            await loop.connect_accepted_socket(self._make_protocol, connection, ssl=self.config.ssl)
        except OSError:  # it is gone already, or it does not speak TLS
            connection.close()

    def _make_protocol(self) -> asyncio.Protocol:
        state = self.lifespan.state
        return self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=state
        )

    def when_closed(self, act: Callable[[], None]) -> None:
        """Call this whenever a connection has been closed."""
        self._room.on_closed = act

    def count_connections(self) -> tuple[int, int]:
        """How many connections are open, and how many there may be now."""
        return len(self.server_state.connections), self._room.most()

    def stop(self, at_once: bool) -> None:
        """Close the listener and the connections; with `at_once` without waiting for them."""
        self.should_exit = True
        self.force_exit = at_once
        self._is_stopping.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close everything; who has not read its reply by then is cut off, or its connection would stay open."""
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)

    async def main_loop(self) -> None:
        """Keep the date of replies true until `stop`, for which uvicorn would look ten times a second."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(until_beat(DATE_SECONDS)):
                    await self._is_stopping.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave the signals alone: uvicorn would close its listener at the first one."""
        yield


def end_cause(serving: "asyncio.Task[None]") -> str:
    """Why a server that was not asked to has ended."""
    error = None if serving.cancelled() else serving.exception()
    return f"the HTTP server ended: {error or 'it gave no reason'}"


def _is_no_chatter(record: logging.LogRecord) -> bool:
    """uvicorn tells of its start and stop at INFO; ours are told by the lifecycle."""
    return record.levelno != logging.INFO

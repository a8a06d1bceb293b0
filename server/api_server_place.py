"""ApiServerPlace: one of several API servers as the launcher sees it, through all the lives of its process."""

import asyncio
import contextlib
import logging
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol

from vllm_obs.engine.child import Child, spawn
from vllm_obs.engine.child_pipe import READY
from vllm_obs.engine.codec_plain import WireError
from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.frontend.crash_suspects import Suspect
from vllm_obs.server.api_server_settings import settings_to_wire
from vllm_obs.server.config import ServerConfig
from vllm_obs.server.launcher_messages import DRAINED, STATUS, SUSPECTS, ServerStatus, read_suspects
from vllm_obs.server.phase import Phase
from vllm_obs.telemetry.recorder import Recorder
from vllm_obs.telemetry.records import ProcessExited

API_SERVER_MODULE = "vllm_obs.server.api_server_main"

logger = logging.getLogger(__name__)


class Connections(Protocol):
    """What gives API servers their connections, as Acceptor."""

    def open(self, client_index: int, handover: socket.socket) -> None:
        """Let a server have some, through this end of a pair."""

    def report(self, client_index: int, has_started: bool, num_taken: int, num_connections: int) -> None:
        """Whether it lets requests in, and how many connections it has taken, and has open."""

    def close_place(self, client_index: int) -> None:
        """It is gone."""


class ServedBy(NamedTuple):
    """What every API server is started with."""

    config: VllmConfig
    server: ServerConfig
    recorder: Recorder
    connections: Connections
    module: str = API_SERVER_MODULE


class ApiServerPlace:
    """`life` counts how many processes were in this place before. Used on the launcher's event loop.

    `on_exit` is called with the place when its process has ended.
    """

    def __init__(
        self, client_index: int, served_by: ServedBy, on_exit: Callable[["ApiServerPlace"], None]
    ) -> None:
        self.client_index = client_index
        self.life = 0
        self.child: Child | None = None
        self.status: ServerStatus | None = None
        self.num_reports = 0
        """How often it has told how it is; it stops to grow when its event loop is held up."""
        self.is_drained = False
        self.ready_at = 0
        """When it became ready (monotonic ns), 0 before."""
        self.on_suspects: Callable[[list[Suspect]], None] = lambda suspects: None
        """Called with the requests that were open here when an engine crashed."""
        self._served_by = served_by
        self._on_exit = on_exit
        self._handover: socket.socket | None = None
        self._loop = asyncio.get_running_loop()

    @property
    def title(self) -> str:
        """What its process and its ring are called."""
        return f"APIServer_{self.client_index}"

    def start(self) -> None:
        """Start a process. StartupError. Call it on the event loop, in the main thread."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.status, self.is_drained, self.ready_at = None, False, 0
        try:
            with theirs:
                settings = self._settings(theirs.fileno())
                child = self.child = spawn(self._served_by.module, self.title, settings, [theirs.fileno()])
        except BaseException:
            ours.close()
            raise
        self._handover = ours
        for kind, take in (
            (STATUS, self._took_status),
            (READY, self._became_ready),
            (DRAINED, self._became_drained),
            (SUSPECTS, self._told_of_suspects),
        ):
            child.on_message(kind, partial(self._call_soon, take, child))
        child.on_exit(lambda cause: self._call_soon(self._ended, child, cause))

    def _settings(self, handover_fd: int) -> dict[str, Any]:
        server = replace(self._served_by.server, client_index=self.client_index)
        return settings_to_wire(self._served_by.config, server, self.life, handover_fd)

    def _call_soon(self, act: Callable[..., None], *arguments: Any) -> None:
        """Called by the thread that watches the child."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(act, *arguments)

    def _took_status(self, child: Child, payload: Any) -> None:
        if child is not self.child:
            return
        try:
            status = ServerStatus.read(payload)
        except (WireError, ValueError) as error:
            logger.warning("%s sent what is no status: %s", self.title, error)
            return
        self.status = status
        self.num_reports += 1
        if self._handover is not None:  # it listens to its end: connections can come
            handover, self._handover = self._handover, None
            self._served_by.connections.open(self.client_index, handover)
        has_started = status.phase != Phase.LOADING.value
        connections = self._served_by.connections
        connections.report(self.client_index, has_started, status.num_taken, status.num_connections)

    def _told_of_suspects(self, child: Child, payload: Any) -> None:
        try:
            self.on_suspects(read_suspects(payload))
        except ValueError as error:
            logger.warning("%s sent what are no suspects: %s", self.title, error)

    def _became_ready(self, child: Child, payload: Any) -> None:
        if child is self.child:
            self.ready_at = time.monotonic_ns()

    def _became_drained(self, child: Child, payload: Any) -> None:
        self.is_drained = self.is_drained or child is self.child

    def _ended(self, child: Child, cause: str) -> None:
        if child is not self.child:
            return
        self._served_by.connections.close_place(self.client_index)
        self._close_handover()
        now = time.monotonic_ns()
        exited = ProcessExited(child.title, child.pid, child.exit_code or 0, now, child.was_told)
        self._served_by.recorder.record(exited)
        self._on_exit(self)

    def order(self, kind: str, payload: Any = None) -> None:
        """Pass an order on. A server that has left so many unread that no more fit hangs, and is killed."""
        child = self.child
        if child is None or child.exit_cause is not None or child.order(kind, payload):
            return
        self.kill("does not read its orders")

    def kill(self, why: str) -> None:
        """End its process without asking; its end is seen as any other."""
        if self.child is not None and self.child.exit_cause is None:
            logger.error("%s %s and is killed", self.title, why)
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self.child.exit_fd, signal.SIGKILL)

    @property
    def pid(self) -> int:
        """Its process, 0 where there is none."""
        return self.child.pid if self.child is not None and self.is_running else 0

    @property
    def exit_cause(self) -> str:
        """Why its process ended; empty while it runs."""
        return (self.child.exit_cause or "") if self.child is not None else ""

    @property
    def was_told(self) -> bool:
        """Whether the end of its process was ordered."""
        return self.child is not None and self.child.was_told

    @property
    def is_running(self) -> bool:
        """Whether there is a process."""
        return self.child is not None and self.child.exit_cause is None

    @property
    def is_ready(self) -> bool:
        """Whether the process that is there said that it serves."""
        return self.is_running and self.ready_at > 0

    def require_life(self) -> None:
        """ConfigError or StartupError with its own cause when its process has ended."""
        if self.child is not None:
            self.child.require_life()

    def ask_to_stop(self) -> None:
        """Order it to end."""
        if self.child is not None:
            self.child.ask_to_stop()

    def close(self) -> None:
        """End what is left of it, now. Idempotent."""
        if self.child is not None:
            self.child.stop(0)
        self._close_handover()

    def _close_handover(self) -> None:
        if self._handover is not None:
            self._handover.close()
            self._handover = None

"""Starting an EngineCore process, and the link to it: its child handle and the two sockets that reach it."""

import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import zmq

from vllm_obs.engine.child import STOP_TIMEOUT_SECONDS, Child, spawn
from vllm_obs.engine.child_pipe import READY
from vllm_obs.engine.codec import read_fields
from vllm_obs.engine.codec_arrays import ArrayReader, Buffer
from vllm_obs.engine.codec_plain import DropReason, WireError
from vllm_obs.engine.config import VllmConfig, to_wire
from vllm_obs.engine.descendants import Descendants
from vllm_obs.engine.errors import EngineDeadError, StartupError, VllmObsError
from vllm_obs.engine.messages import EngineCoreOutputs, EngineFacts
from vllm_obs.engine.run_dir import RunDirectory
from vllm_obs.engine.socket_door import SocketDoor
from vllm_obs.engine.sockets import make_socket, receive_frames, send_frames, socket_endpoint
from vllm_obs.engine.wire import HELLO, Hello, decode_as, decode_outputs
from vllm_obs.telemetry.recorder import Recorder
from vllm_obs.telemetry.records import FrameDropped, ProcessExited

ENGINE_MODULE = "vllm_obs.engine.process"
READY_TIMEOUT_SECONDS = 600.0
READY_POLL_SECONDS = 0.01

_logger = logging.getLogger(__name__)


def engine_identity(engine_index: int, generation: int) -> bytes:
    """The name under which an engine's DEALER is routed to; a restarted engine has another."""
    return f"engine-{engine_index}-{generation}".encode()


class EngineLink:
    """One engine process and our ends of its sockets: ROUTER for requests, PULL for outputs."""

    def __init__(self, config: VllmConfig, recorder: Recorder, module: str = ENGINE_MODULE) -> None:
        self._run_directory = None if config.run_dir else RunDirectory.create()
        if self._run_directory:
            config = replace(config, run_dir=str(self._run_directory.path))
        self.config = config
        self.client_index = 0
        self.num_dropped: Counter[str] = Counter()
        self._has_said_hello = False
        self._doors: list[SocketDoor] = []
        self._is_stopped = False
        self._recorder = recorder
        self._module = module
        self._below = Descendants([])
        self._identity = engine_identity(0, config.generation)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._requests = make_socket(self._context, zmq.ROUTER)
        self.outputs = make_socket(self._context, zmq.PULL)
        try:
            self.child = self._start()
        except BaseException:
            self._close_sockets()
            raise

    def _start(self) -> Child:
        names = [f"{kind}{self.client_index}-{self.config.generation}" for kind in ("in", "out")]
        endpoints = self._endpoints = [socket_endpoint(self.config.run_dir, name) for name in names]
        configuration = {"config": to_wire(self.config), "engine_index": 0, "clients": [endpoints]}
        child = spawn(self._module, "EngineCore_DP0", configuration)
        try:  # the child tries again until its sockets are there
            for socket, endpoint in zip((self._requests, self.outputs), endpoints, strict=True):
                self._doors.append(SocketDoor(socket, endpoint, child.pid))
        except BaseException:
            child.stop(0)
            raise
        return child

    def try_ready(self) -> EngineFacts | None:
        """The engine's facts once it can be sent to, None before. ConfigError or StartupError when it ended."""
        self._has_said_hello = self._has_said_hello or self._take_hello()
        self._watch_doors()
        try:
            payload = self.child.message(READY)
            if payload is None or not self._has_said_hello or not all(door.has_peer for door in self._doors):
                self.child.require_life()  # one that ended after READY says nothing any more
                return None
        except VllmObsError:
            self.record_exit()
            raise
        self._take_names_away()
        self._below = Descendants.of(self.child.pid)
        facts: EngineFacts = read_fields(EngineFacts, payload, ArrayReader([]))
        return facts

    def _watch_doors(self) -> None:
        """Count who wanted to be taken for the engine."""
        num_strangers = sum(door.look() for door in self._doors)
        if num_strangers and not self.num_dropped["stranger"]:
            _logger.warning("another process than the engine tried to connect to its sockets")
        for _ in range(num_strangers):
            self.drop("stranger")

    def _take_names_away(self) -> None:
        """Remove the sockets' files: both ends are connected, and a killed owner could not do it later."""
        for door in self._doors:
            door.stop_watching()
        for endpoint in self._endpoints:
            Path(endpoint.removeprefix("ipc://")).unlink(missing_ok=True)

    def successor(self) -> "EngineLink":
        """Start the engine that takes this one's place: the next generation, in the caller's run directory."""
        assert self._run_directory is None
        config = replace(self.config, generation=self.config.generation + 1)
        return EngineLink(config, self._recorder, self._module)

    @property
    def has_left_nothing(self) -> bool:
        """Whether the engine and every process it had when it was ready have ended."""
        return self.child.exit_cause is not None and self._below.are_gone

    @property
    def dead_cause(self) -> str | None:
        """Why the engine ended; None while it lives, and when it was stopped on purpose."""
        return None if self._is_stopped else self.child.exit_cause

    def late_error(self, timeout_seconds: float) -> StartupError:
        """What a client raises that has waited long enough."""
        return StartupError(f"{self.child.title} was not ready within {timeout_seconds:g} s")

    def _take_hello(self) -> bool:
        try:
            identity, *frames = receive_frames(self._requests, zmq.DONTWAIT)
            hello = decode_as(HELLO, Hello, frames)
        except (zmq.Again, WireError):
            return False
        return identity == self._identity and hello.generation == self.config.generation

    def send(self, frames: Sequence[Buffer], flags: int = 0) -> None:
        """Send a message to the engine; zmq.Again when its queue is full, EngineDeadError when it is gone."""
        if self.child.exit_cause:
            raise EngineDeadError(self.child.exit_cause)
        try:
            send_frames(self._requests, [self._identity, *frames], flags)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            raise EngineDeadError(self.child.exit_cause or f"{self.child.title} is not connected") from None

    def receive(self, frames: Sequence[Buffer]) -> EngineCoreOutputs | None:
        """The outputs in these frames; None, and counted, for what is broken or not of this engine's life."""
        try:
            outputs = decode_outputs(frames)
        except WireError as error:
            self.drop(error.reason)
            return None
        if outputs.generation != self.config.generation:
            self.drop("generation")
            return None
        if (outputs.client_index, outputs.engine_index) != (self.client_index, 0):
            self.drop("client")
            return None
        return outputs

    def drop(self, reason: DropReason) -> None:
        """Count a message that was not taken."""
        self.num_dropped[reason] += 1
        self._recorder.record(FrameDropped("client_outputs", reason, time.monotonic_ns()))

    def record_exit(self) -> None:
        """The engine's process has ended, whether it was told to or not."""
        child, now = self.child, time.monotonic_ns()
        self._recorder.record(ProcessExited(child.title, child.pid, child.exit_code or 0, now, child.was_told))

    def ask_to_stop(self) -> None:
        """Order the engine to end; from now on its end is no death."""
        self._is_stopped = self._is_stopped or self.child.exit_cause is None
        self.child.ask_to_stop()

    def close(self, timeout_seconds: float = STOP_TIMEOUT_SECONDS) -> None:
        """End the engine within that time (then SIGKILL) and take the sockets away. Idempotent."""
        self._is_stopped = self._is_stopped or self.child.exit_cause is None
        self.child.stop(timeout_seconds)
        self._below.kill()
        self._below.close()
        self._close_sockets()

    def _close_sockets(self) -> None:
        self._context.destroy(linger=0)
        if self._run_directory:
            self._run_directory.close()


def engine_settings(configuration: dict[str, Any]) -> tuple[int, list[tuple[str, str]]]:
    """The engine's side of `EngineLink._start`: its index, and each client's (request, output) endpoints."""
    return configuration["engine_index"], [(inputs, outputs) for inputs, outputs in configuration["clients"]]

"""EngineSockets: one client's ends of the two sockets between it and one engine."""

import logging
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import zmq

from vllm_obs.engine.codec_arrays import Buffer
from vllm_obs.engine.codec_plain import DropReason, WireError
from vllm_obs.engine.engine_titles import engine_identity
from vllm_obs.engine.errors import EngineDeadError
from vllm_obs.engine.messages import EngineCoreOutputs
from vllm_obs.engine.socket_door import SocketDoor
from vllm_obs.engine.sockets import make_socket, receive_frames, send_frames, socket_endpoint
from vllm_obs.engine.wire import HELLO, Hello, decode_as, decode_outputs
from vllm_obs.telemetry.recorder import Recorder
from vllm_obs.telemetry.records import FrameDropped

_logger = logging.getLogger(__name__)


class Route(NamedTuple):
    """Between which client and which life of which engine; `client_life` counts a client's restarts."""

    client_index: int = 0
    engine_index: int = 0
    generation: int = 0
    client_life: int = 0

    def endpoints(self, run_dir: str) -> tuple[str, str]:
        """Where the client listens for the engine: for what takes its requests, and for what sends outputs."""
        client = f"{self.client_index}.{self.client_life}" if self.client_life else self.client_index
        requests, outputs = (
            socket_endpoint(run_dir, f"{kind}{client}-{self.engine_index}-{self.generation}")
            for kind in ("in", "out")
        )
        return requests, outputs


class EngineSockets:
    """ROUTER for requests and PULL for outputs. They listen from `listen` on, for one process only."""

    def __init__(self, route: Route, run_dir: str, recorder: Recorder) -> None:
        self.route = route
        self.endpoints = route.endpoints(run_dir)
        self.num_dropped: Counter[str] = Counter()
        self._identity = engine_identity(route.engine_index, route.generation)
        self._recorder = recorder
        self._doors: list[SocketDoor] = []
        self._has_said_hello = False
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._requests = make_socket(self._context, zmq.ROUTER)
        self.outputs = make_socket(self._context, zmq.PULL)

    def listen(self, engine_pid: int) -> None:
        """Let that process in and nobody else; it tries again until the sockets are there. ConfigError."""
        for socket, endpoint in zip((self._requests, self.outputs), self.endpoints, strict=True):
            self._doors.append(SocketDoor(socket, endpoint, engine_pid))

    def look(self) -> bool:
        """Whether the engine came in and can be sent to; counts who wanted to be taken for it."""
        self._has_said_hello = self._has_said_hello or self._take_hello()
        num_strangers = sum(door.look() for door in self._doors)
        if num_strangers and not self.num_dropped["stranger"]:
            _logger.warning("another process than the engine tried to connect to its sockets")
        for _ in range(num_strangers):
            self.drop("stranger")
        return self._has_said_hello and bool(self._doors) and all(door.has_peer for door in self._doors)

    def take_names_away(self) -> None:
        """Remove the sockets' files: both ends are connected, and a killed owner could not do it later."""
        for door in self._doors:
            door.stop_watching()
        for endpoint in self.endpoints:
            Path(endpoint.removeprefix("ipc://")).unlink(missing_ok=True)

    def send(self, frames: Sequence[Buffer], flags: int = 0) -> None:
        """Send a message to the engine; zmq.Again when its queue is full, EngineDeadError when it is not there."""
        try:
            send_frames(self._requests, [self._identity, *frames], flags)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            raise EngineDeadError("the engine is not connected") from None

    def receive(self, frames: Sequence[Buffer]) -> EngineCoreOutputs | None:
        """The outputs in these frames; None, and counted, for what is broken or not of this engine's life."""
        try:
            outputs = decode_outputs(frames)
        except WireError as error:
            self.drop(error.reason)
            return None
        if outputs.generation != self.route.generation:
            self.drop("generation")
            return None
        if (outputs.client_index, outputs.engine_index) != self.route[:2]:
            self.drop("client")
            return None
        return outputs

    def drop(self, reason: DropReason) -> None:
        """Count a message that was not taken."""
        self.num_dropped[reason] += 1
        self._recorder.record(FrameDropped("client_outputs", reason, time.monotonic_ns()))

    def close(self) -> None:
        """Take the sockets away. Idempotent."""
        self._context.destroy(linger=0)

    def _take_hello(self) -> bool:
        try:
            identity, *frames = receive_frames(self._requests, zmq.DONTWAIT)
            hello = decode_as(HELLO, Hello, frames)
        except (zmq.Again, WireError):
            return False
        return identity == self._identity and hello.generation == self.route.generation

"""AgentSession: an agent's connection to one life of host 0's engine, from its greeting to the loss of it."""

import os
import socket
import time
from collections.abc import Callable
from queue import Full, Queue, SimpleQueue
from typing import Any, NamedTuple

import zmq

from vllm_obs.engine.codec_arrays import Buffer
from vllm_obs.engine.nodes.cluster_key import ClusterKeys
from vllm_obs.engine.nodes.node_door import prove
from vllm_obs.engine.nodes.node_line import LineFullError, NodeLine
from vllm_obs.engine.nodes.node_messages import (
    Farewell,
    Greeting,
    NodeMessage,
    Ping,
    Pong,
    Refusal,
    ToRanks,
    Welcome,
)
from vllm_obs.engine.nodes.node_settings import Settings
from vllm_obs.engine.nodes.remote_nodes import SILENCE_SECONDS
from vllm_obs.engine.sockets import make_socket

MAX_COMMANDS = 256
"""That wait for a rank to read them. A pipeline has a few steps of two commands in flight."""
NUM_REFUSED_HANDSHAKES = 5
"""So often a connection may end before it is one; a host that is starting or ending does that once or twice."""
_RECONNECT_MS = 100
_LONGEST_RECONNECT_MS = 1_000
_EVENTS = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_CONNECTED | zmq.EVENT_DISCONNECTED
_FAILURES = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


class Welcomed(NamedTuple):
    """Host 0 wants the ranks of this configuration, in plain values, and has so much of this host's rings."""

    config: dict[str, Any]
    ring_positions: bytes


class Refused(NamedTuple):
    """Host 0 will not have this host: whatever is tried again, if that is final, else for now."""

    cause: str
    is_final: bool = True


class HostLost(NamedTuple):
    """The engine on host 0 is gone, or cannot be reached."""

    cause: str


class HostEnded(NamedTuple):
    """The engine on host 0 was told to end."""


class Stopped(NamedTuple):
    """This agent was told to end."""


class RanksFailed(NamedTuple):
    """A rank of this host ended, or cannot go on."""

    cause: str
    exit_code: int


Event = Welcomed | Refused | HostLost | HostEnded | Stopped | RanksFailed
Events = SimpleQueue[Event]


class AgentIdentity(NamedTuple):
    """Who greets: the host's rank, and what must be the same on every host."""

    node_rank: int
    settings: Settings


class AgentSession:
    """Connects at once and greets as soon as it can; what happens is put into `events`.

    Commands for the ranks go to `commands`, in order.
    """

    def __init__(self, endpoint: str, keys: ClusterKeys, identity: AgentIdentity, events: Events) -> None:
        self.commands: Queue[bytes] = Queue(MAX_COMMANDS)
        self.is_welcome = False
        self.is_offset_known = False
        self._identity = identity
        self._events = events
        self._seen_at = 0.0
        self._num_commands = 0
        self._num_refused = 0
        self._is_connecting = False
        self._is_over = False
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        name = f"{identity.node_rank}-{os.urandom(8).hex()}".encode()
        self._socket = make_socket(context, zmq.DEALER, name)
        self._socket.set(zmq.IPV6, 1)
        self._socket.set(zmq.RECONNECT_IVL, _RECONNECT_MS)
        self._socket.set(zmq.RECONNECT_IVL_MAX, _LONGEST_RECONNECT_MS)
        prove(self._socket, keys)
        self._monitor = self._socket.get_monitor_socket(_EVENTS | _FAILURES)
        self._socket.connect(endpoint)
        self._line = NodeLine(context, self._socket, {self._monitor: self._look}, is_host=False)
        self._line.start(self)

    def send(self, message: NodeMessage, body: Buffer = b"") -> None:
        """Send to host 0, from any thread; what cannot be sent any more ends the session."""
        try:
            self._line.send(message, body)
        except LineFullError as error:
            self._end(HostLost(str(error)))

    @property
    def num_unsent(self) -> int:
        """How many messages wait to be sent."""
        return self._line.num_unsent

    def close(self) -> None:
        """Let go of the connection. Idempotent."""
        self._is_over = True
        self._line.stop()

    def take(self, peer: bytes, message: NodeMessage, body: bytes) -> None:
        """A message came from host 0."""
        self._seen_at = time.monotonic()
        if isinstance(message, ToRanks):
            self._command(message.number, body)
        elif isinstance(message, Ping):
            received_at = time.monotonic_ns()
            self.is_offset_known = message.is_offset_known
            self.send(Pong(message.sent_at, received_at, time.monotonic_ns()))
        elif isinstance(message, Welcome) and not self.is_welcome:
            self.is_welcome = True
            self._events.put(Welcomed(message.config, message.ring_positions))
        elif isinstance(message, Refusal):
            self._end(Refused(message.cause, message.is_final))
        elif isinstance(message, Farewell):
            self._end(HostEnded())

    def unreachable(self, peer: bytes) -> None:
        """Only a ROUTER knows of that."""

    def tick(self) -> None:
        """Give up a host that has been silent for too long."""
        if self.is_welcome and time.monotonic() - self._seen_at > SILENCE_SECONDS:
            self._end(HostLost(f"host 0 gave no sign of life for {SILENCE_SECONDS:g} s"))

    def broken(self, cause: str) -> None:
        """The line's thread is ending."""
        self._end(HostLost(cause))

    def _command(self, number: int, body: bytes) -> None:
        self._num_commands += 1
        if number != self._num_commands:
            self._end(HostLost(f"command {number} came in the place of command {self._num_commands}"))
            return
        try:
            self.commands.put_nowait(body)
        except Full:
            self._end(HostLost(f"{MAX_COMMANDS} commands wait for a rank that reads none"))

    def _look(self) -> None:
        """What became of the connection. The greeting goes out with each new one, until it is answered."""
        kind = int.from_bytes(self._monitor.recv_multipart()[0][:2], "little")
        if self._is_over:
            return  # the socket connects again by itself, but to another life of the engine
        if kind == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._is_connecting, self._num_refused = False, 0
            node_rank, settings = self._identity
            self.send(Greeting(node_rank, socket.gethostname(), os.getpid(), settings))
        elif kind == zmq.EVENT_CONNECTED:
            self._is_connecting = True
        elif kind & (_FAILURES | zmq.EVENT_DISCONNECTED):
            self._disconnected()

    def _disconnected(self) -> None:
        if self.is_welcome:
            self._end(HostLost("host 0 closed the connection"))
        elif self._is_connecting:
            self._is_connecting = False
            self._num_refused += 1
            if self._num_refused >= NUM_REFUSED_HANDSHAKES:
                self._end(Refused("host 0 does not take this host's cluster key, or is something else"))

    def _end(self, event: Event) -> None:
        """The first cause counts; what comes later is its consequence."""
        if not self._is_over:
            self._is_over = True
            self._events.put(event)


MakeSession = Callable[[], AgentSession]
"""Connect anew."""

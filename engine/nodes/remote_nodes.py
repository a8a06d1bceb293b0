"""RemoteNodes: host 0's view of the other hosts: who has come, what their ranks said, and whether they live."""

import contextlib
import logging
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Protocol

import zmq

from vllm_obs.engine.codec_arrays import Buffer
from vllm_obs.engine.config import VllmConfig, to_wire
from vllm_obs.engine.errors import ConfigError, StartupError
from vllm_obs.engine.nodes.clock_offset import ClockOffset, Exchange
from vllm_obs.engine.nodes.cluster_key import key_pairs, read_cluster_key
from vllm_obs.engine.nodes.network import control_endpoint
from vllm_obs.engine.nodes.node_door import NodeDoor, guard
from vllm_obs.engine.nodes.node_line import LineFullError, NodeLine
from vllm_obs.engine.nodes.node_messages import (
    Farewell,
    FromRank,
    Greeting,
    NodeFailed,
    NodeMessage,
    Ping,
    Pong,
    RankSaid,
    Refusal,
    RingBytes,
    ToRanks,
    Welcome,
)
from vllm_obs.engine.nodes.node_settings import Settings, differences, node_settings
from vllm_obs.engine.sockets import make_socket

PING_SECONDS = 0.5
SILENCE_SECONDS = 5.0
"""A host that has said nothing for so long is lost. Its pongs come twice a second."""
BIND_SECONDS = 5.0
"""How long a dead engine may still hold the port of the next."""

_logger = logging.getLogger(__name__)


class NodeListener(Protocol):
    """Whom host 0's line tells. All of it is called by the line's thread, and may not block."""

    def replied(self, rank: int, body: bytes, offset_ns: int) -> None:
        """A rank of another host answered, whose clock is so far behind ours."""

    def ring_positions(self, host: str) -> bytes:
        """What is here already of the records of a host that has come."""

    def recorded(self, host: str, body: bytes, offset_ns: int) -> None:
        """What was recorded on another host, whose clock is so far behind ours."""

    def failed(self, cause: str) -> None:
        """A host, or a rank there, is lost; called once."""


@dataclass
class _Node:
    """One other host. `peer` is empty until its agent came."""

    node_rank: int
    ranks: range
    peer: bytes = b""
    where: str = ""
    seen_at: float = 0.0
    pinged_at: float = 0.0
    num_commands: int = 0
    said: dict[str, dict[int, Any]] = field(default_factory=dict)
    clock: ClockOffset = field(default_factory=ClockOffset)

    @property
    def title(self) -> str:
        """For people: which host it is, and where."""
        return node_title(self.node_rank) + (f" ({self.where})" if self.where else "")


class RemoteNodes:
    """Listens for the agents, from its making on. `failure` is why a host is lost, and its exit code."""

    def __init__(self, config: VllmConfig, listener: NodeListener) -> None:
        self.failure: tuple[str, int] | None = None
        self._config = config
        self._settings: Settings = node_settings(config)
        self._listener = listener
        self._nodes = [_Node(rank, ranks_of(config, rank)) for rank in range(1, config.parallel.nnodes)]
        self._changed = threading.Condition()
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            self._line = _listen(context, config)
        except BaseException:
            context.destroy(linger=0)
            raise
        self._line.start(self)

    def messages(self, kind: str) -> dict[int, Any]:
        """What ranks of other hosts have said of that kind, by rank; ConfigError or StartupError for a loss."""
        with self._changed:
            if self.failure is not None:
                cause, exit_code = self.failure
                raise ConfigError(cause) if exit_code == ConfigError.exit_code else StartupError(cause)
            return {rank: said for node in self._nodes for rank, said in node.said.get(kind, {}).items()}

    def missing(self) -> list[str]:
        """The hosts whose agents have not come."""
        return [node.title for node in self._nodes if not node.peer]

    def broadcast(self, body: Buffer) -> None:
        """Send every rank of every host a command."""
        for node in self._nodes:
            node.num_commands += 1
            self._line.send(ToRanks(node.num_commands), body, node.peer)

    def stop(self, is_farewell: bool) -> None:
        """Close; before that tell the agents, if so, that the engine ends because it was told to. Idempotent."""
        with contextlib.suppress(LineFullError):  # to agents that take nothing: they will see the line close
            for node in self._nodes:
                if is_farewell and node.peer and self.failure is None:
                    self._line.send(Farewell(self._config.generation), peer=node.peer)
        self._line.stop()

    def take(self, peer: bytes, message: NodeMessage, body: bytes) -> None:
        """A message came; from an agent that is not of this engine's life nothing but a greeting counts."""
        if isinstance(message, Greeting):
            self._greet(peer, message)
            return
        node = next((node for node in self._nodes if node.peer == peer), None)
        if node is None:
            return
        node.seen_at = time.monotonic()
        if isinstance(message, Pong):
            node.clock.add(Exchange(*message, returned_at=time.monotonic_ns()))
        elif isinstance(message, FromRank | RankSaid) and message.rank not in node.ranks:
            self._lose(f"{node.title} speaks for rank {message.rank}, which is not there")
        elif isinstance(message, FromRank):
            self._listener.replied(message.rank, body, -node.clock.offset_ns)
        elif isinstance(message, RankSaid):
            self._note(node, message)
        elif isinstance(message, RingBytes):
            self._listener.recorded(node_title(node.node_rank), body, -node.clock.offset_ns)
        elif isinstance(message, NodeFailed):
            self._lose(f"{message.cause} (on {node.title})", message.exit_code)

    def unreachable(self, peer: bytes) -> None:
        """The connection is gone, and with it the agent's trust in us: it ends its ranks."""
        for node in self._nodes:
            if node.peer == peer:
                self._lose(f"{node_title(node.node_rank)} was lost: {node.where} closed the connection")

    def tick(self) -> None:
        """Ping every agent; give up one that has been silent for too long."""
        now = time.monotonic()
        for node in self._nodes:
            if not node.peer:
                continue
            if now - node.seen_at > SILENCE_SECONDS:
                silence = f"{node.where} gave no sign of life for {SILENCE_SECONDS:g} s"
                self._lose(f"{node_title(node.node_rank)} was lost: {silence}")
            elif now - node.pinged_at >= PING_SECONDS:
                self._ping(node)

    def broken(self, cause: str) -> None:
        """The line's own thread is ending."""
        self._lose(cause)

    def _ping(self, node: _Node) -> None:
        node.pinged_at = time.monotonic()
        self._line.send(Ping(time.monotonic_ns(), node.clock.is_known), peer=node.peer)

    def _greet(self, peer: bytes, greeting: Greeting) -> None:
        who = f"{node_title(greeting.node_rank)} ({greeting.hostname:.64})"
        node = next((node for node in self._nodes if node.node_rank == greeting.node_rank), None)
        if node is None:
            self._refuse(peer, f"{who} came, but there are hosts 0 to {len(self._nodes)}")
        elif node.peer == peer:
            return
        elif node.peer and self._is_there(node):
            # Or it is the same host, started anew before its silence was noticed: that time comes to an end.
            cause = f"{node.title} is there already; {greeting.hostname:.64} has the same --node-rank"
            self._refuse(peer, cause, is_final=False)
        elif node.peer:
            self.unreachable(node.peer)
        elif told := differences(self._settings, greeting.settings):
            cause = f"{who} cannot take part: {'; '.join(told)}"
            self._refuse(peer, cause)
            self._lose(cause, ConfigError.exit_code)
        else:
            node.peer, node.where, node.seen_at = peer, f"{greeting.hostname:.64}", time.monotonic()
            _logger.info("%s has come, for ranks %d to %d", who, node.ranks[0], node.ranks[-1])
            positions = self._listener.ring_positions(node_title(node.node_rank))
            self._line.send(Welcome(to_wire(self._config), positions), peer=peer)
            self._ping(node)

    def _is_there(self, node: _Node) -> bool:
        return self._line.try_send(Ping(time.monotonic_ns(), node.clock.is_known), peer=node.peer)

    def _refuse(self, peer: bytes, cause: str, is_final: bool = True) -> None:
        _logger.warning("a host was refused: %s", cause)
        self._line.send(Refusal(cause, is_final), peer=peer)

    def _note(self, node: _Node, said: RankSaid) -> None:
        with self._changed:
            node.said.setdefault(said.kind, {})[said.rank] = said.payload

    def _lose(self, cause: str, exit_code: int = StartupError.exit_code) -> None:
        with self._changed:
            if self.failure is not None:
                return
            self.failure = (cause, exit_code)
        self._listener.failed(cause)


def node_title(node_rank: int) -> str:
    """What a host is called."""
    return f"Node_{node_rank}"


def ranks_of(config: VllmConfig, node_rank: int) -> range:
    """The ranks that a host runs: equal runs, in the order of the hosts."""
    num_ranks = config.parallel.world_size // config.parallel.nnodes
    return range(node_rank * num_ranks, (node_rank + 1) * num_ranks)


def _listen(context: "zmq.Context[zmq.Socket[bytes]]", config: VllmConfig) -> NodeLine:
    keys = key_pairs(read_cluster_key(config.parallel.cluster_key_file))
    door = NodeDoor(context, keys)
    socket = make_socket(context, zmq.ROUTER)
    socket.set(zmq.IPV6, 1)
    guard(socket, keys)
    endpoint, deadline = control_endpoint(config.parallel), time.monotonic() + BIND_SECONDS
    while True:
        try:
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            if error.errno != zmq.EADDRINUSE or time.monotonic() >= deadline:
                why = zmq.strerror(error.errno or 0)
                raise ConfigError(f"cannot listen for other hosts on {endpoint}: {why}") from None
            time.sleep(0.1)
        else:
            return NodeLine(context, socket, {door.socket: door.look}, is_host=True)

"""Nobody gets in who has not the cluster's key: not without CURVE, not with another key, not with half of it."""

import socket
import time
from collections.abc import Iterator

import pytest
import zmq
from agent_process import KEY
from serving import free_port

from vllm_obs.engine.nodes.cluster_key import ClusterKeys, KeyPair, key_pairs
from vllm_obs.engine.nodes.node_door import NodeDoor, guard, prove
from vllm_obs.engine.nodes.node_line import NodeLine
from vllm_obs.engine.nodes.node_messages import NodeMessage, Ping, encode
from vllm_obs.engine.sockets import make_socket, send_frames
from vllm_obs.engine.wire import FrameEncoder

KEYS = key_pairs(KEY)


class Listener:
    """Remembers what came in."""

    def __init__(self) -> None:
        self.taken: list[NodeMessage] = []

    def take(self, peer: bytes, message: NodeMessage, body: bytes) -> None:
        self.taken.append(message)

    def unreachable(self, peer: bytes) -> None:
        pass

    def tick(self) -> None:
        pass

    def broken(self, cause: str) -> None:
        raise AssertionError(cause)


class Host:
    """A listening socket as host 0 has it."""

    def __init__(self) -> None:
        self.port = free_port()
        self.listener = Listener()
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.door = NodeDoor(context, KEYS)
        router = make_socket(context, zmq.ROUTER)
        guard(router, KEYS)
        router.bind(f"tcp://127.0.0.1:{self.port}")
        self.line = NodeLine(context, router, {self.door.socket: self.door.look}, is_host=True)
        self.line.start(self.listener)

    def taken(self, seconds: float) -> list[NodeMessage]:
        """What came within that time; at once when something did."""
        deadline = time.monotonic() + seconds
        while not self.listener.taken and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.listener.taken


@pytest.fixture
def host() -> Iterator[Host]:
    host = Host()
    yield host
    host.line.stop()


@pytest.fixture
def dealer() -> Iterator["zmq.Socket[bytes]"]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield make_socket(context, zmq.DEALER, b"stranger")
    context.destroy(linger=0)


def say(dealer: "zmq.Socket[bytes]", port: int) -> None:
    dealer.connect(f"tcp://127.0.0.1:{port}")
    send_frames(dealer, encode(FrameEncoder(), Ping(1, False)))


def test_who_has_the_key_gets_in(host: Host, dealer: "zmq.Socket[bytes]") -> None:
    prove(dealer, KEYS)
    say(dealer, host.port)
    assert host.taken(30.0) == [Ping(1, False)]
    assert host.door.num_refused == 0


def test_who_says_nothing_of_a_key_does_not(host: Host, dealer: "zmq.Socket[bytes]") -> None:
    say(dealer, host.port)
    assert host.taken(0.5) == []


def test_who_has_another_key_does_not(host: Host, dealer: "zmq.Socket[bytes]") -> None:
    prove(dealer, key_pairs("a secret that nobody shares"))
    say(dealer, host.port)
    assert host.taken(0.5) == []


def test_who_knows_the_hosts_public_key_only_does_not(host: Host, dealer: "zmq.Socket[bytes]") -> None:
    own = KeyPair(*zmq.curve_keypair())
    prove(dealer, ClusterKeys(KEYS.host, own))
    say(dealer, host.port)
    assert host.taken(0.5) == []
    assert host.door.num_refused > 0


@pytest.mark.parametrize(
    "greeting",
    [b"\x01\x00", b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x01\x05\x00\x00", b"GET / HTTP/1.1\r\n\r\n"],
)
def test_older_protocols_and_other_ones_do_not(host: Host, greeting: bytes) -> None:
    with socket.create_connection(("127.0.0.1", host.port), timeout=10.0) as peer:
        peer.sendall(greeting + b"\x00" * 64)
        assert host.taken(0.5) == []

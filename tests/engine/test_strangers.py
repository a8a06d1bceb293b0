"""Strangers at the engine's sockets: turned away at the door, cut off in time, never taken for the engine."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq
from engine_peer import GENERATION, EnginePeer
from fake_executor import expected_output
from strangers import SPEECHES, seconds_until_cut_off, strangers_at
from wire_samples import outputs

from vllm_obs.engine.engine_titles import engine_identity
from vllm_obs.engine.launch import EngineLink
from vllm_obs.engine.messages import FinishReason
from vllm_obs.engine.socket_door import SocketDoor
from vllm_obs.engine.sockets import HANDSHAKE_TIMEOUT_MS, bind, make_socket, receive_frames, socket_endpoint
from vllm_obs.engine.wire import HELLO, FrameEncoder, Hello
from vllm_obs.telemetry.records import FrameDropped

pytestmark = pytest.mark.usefixtures("child_modules", "run_base")

LIMIT_SECONDS = 3 * HANDSHAKE_TIMEOUT_MS / 1e3
NUM_SILENT = 500
"""Of these some must not pass: together with what the other side opens they are more than 1,024 files."""

Socket = zmq.Socket[bytes]


@pytest.fixture
def make() -> Iterator[Callable[..., Socket]]:
    """`make_socket` without its context; all are closed at the end."""
    context: zmq.Context[Socket] = zmq.Context()
    made: list[Socket] = []

    def make_one(kind: int, identity: bytes = b"") -> Socket:
        made.append(make_socket(context, kind, identity))
        return made[-1]

    yield make_one
    for socket in made:
        socket.close()
    context.term()


def path_of(endpoint: str) -> str:
    return endpoint.removeprefix("ipc://")


def test_where_everybody_may_connect_a_stranger_is_cut_off_at_the_handshake(
    make: Callable[..., Socket], run_base: Path
) -> None:
    """As between hosts."""
    assert HANDSHAKE_TIMEOUT_MS <= 3000
    pairs = []
    with contextlib.ExitStack() as stack:
        connections = []
        for kind, peer_kind in ((zmq.PULL, zmq.PUSH), (zmq.ROUTER, zmq.DEALER)):
            listener, endpoint = make(kind), socket_endpoint(str(run_base), f"open{kind}")
            bind(listener, endpoint)
            speeches = [*SPEECHES.values(), *[b""] * 50]
            connections += stack.enter_context(strangers_at(path_of(endpoint), speeches, LIMIT_SECONDS))
            peer = make(peer_kind, b"peer")
            peer.connect(endpoint)
            pairs.append((listener, peer))
            peer.send_multipart([b"a", b"b"])
            assert receive_frames(listener)[-2:] == [b"a", b"b"]
        assert seconds_until_cut_off(connections) < LIMIT_SECONDS
        for listener, peer in pairs:
            peer.send_multipart([b"c", b"d"])
            assert receive_frames(listener)[-2:] == [b"c", b"d"]


def test_a_second_peer_of_the_same_name_is_ignored(make: Callable[..., Socket], run_base: Path) -> None:
    router, endpoint = make(zmq.ROUTER), socket_endpoint(str(run_base), "in")
    bind(router, endpoint)
    first, second = make(zmq.DEALER, b"engine-0"), make(zmq.DEALER, b"engine-0")
    first.connect(endpoint)
    first.send(b"hello")
    assert receive_frames(router) == [b"engine-0", b"hello"]
    second.connect(endpoint)
    second.send(b"it is me")
    router.send_multipart([b"engine-0", b"for the first"])
    assert first.recv() == b"for the first"
    with pytest.raises(zmq.Again):
        receive_frames(router)
    assert second.poll(100) == 0


def test_a_door_lets_one_process_in_and_counts_the_others(make: Callable[..., Socket], run_base: Path) -> None:
    for pid, is_let_in in ((os.getpid(), True), (1, False)):
        listener, endpoint = make(zmq.PULL), socket_endpoint(str(run_base), f"door-{pid}")
        door = SocketDoor(listener, endpoint, pid)
        assert (door.look(), door.has_peer) == (0, False)
        peer = make(zmq.PUSH)
        peer.connect(endpoint)
        num_strangers, deadline = 0, time.monotonic() + LIMIT_SECONDS
        while not (num_strangers or door.has_peer) and time.monotonic() < deadline:
            num_strangers += door.look()
            time.sleep(0.01)
        assert (num_strangers > 0, door.has_peer) == (not is_let_in, is_let_in)
        door.stop_watching()


def test_nobody_but_the_engine_gets_in_while_it_starts(caplog: pytest.LogCaptureFixture) -> None:
    """Not as many as 500 that hold connections, not with its name, not with outputs of its life."""
    seconds: list[float] = []
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    def attack(link: EngineLink) -> None:
        for endpoint in link.sockets.endpoints:
            with strangers_at(
                path_of(endpoint), [*SPEECHES.values(), *[b""] * NUM_SILENT], LIMIT_SECONDS
            ) as silent:
                seconds.append(seconds_until_cut_off(silent))
        pretend_to_be_the_engine(link)

    peer = EnginePeer(attack)
    try:
        assert max(seconds) < LIMIT_SECONDS
        assert peer.link.num_dropped.keys() == {"stranger"}
        said = [record.getMessage() for record in caplog.records]
        assert said.count("another process than the engine tried to connect to its sockets") == 1
        assert peer.link.num_dropped["stranger"] >= 2 * (NUM_SILENT + len(SPEECHES)) + 2
        assert {record.reason for record in peer.recorder.of(FrameDropped)} == {"stranger"}  # type: ignore[union-attr]
        peer.add("a", [1, 2, 3], max_tokens=20)
        assert peer.run({"a"}) == {"a": (expected_output([1, 2, 3], 20), FinishReason.LENGTH)}
        assert len(os.listdir("/proc/self/fd")) - before < 60  # noqa: PTH208
        for endpoint in peer.link.sockets.endpoints:
            assert not Path(path_of(endpoint)).exists()
    finally:
        peer.close()


def pretend_to_be_the_engine(link: EngineLink) -> None:
    """Say HELLO under its name and send outputs, at least until the sockets have turned that away."""
    encoder = FrameEncoder()
    with zmq.Context() as context:
        dealer = make_socket(context, zmq.DEALER, engine_identity(0, GENERATION))
        push = make_socket(context, zmq.PUSH)
        for impostor, endpoint in zip((dealer, push), link.sockets.endpoints, strict=True):
            impostor.connect(endpoint)
        dealer.send_multipart(encoder.frames(HELLO, Hello(0, GENERATION, os.getpid())))
        forged = outputs(request_ids=["a", "b"], new_token_ids=[7, 7])
        push.send_multipart(encoder.outputs(forged))
        time.sleep(0.3)
        dealer.close(linger=0)
        push.close(linger=0)

"""Sockets: every limit is set, paths fit, and strangers on them cost nothing."""

import socket as sockets
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from vllm_obs.engine.codec_plain import WireError
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.sockets import HANDSHAKE_TIMEOUT_MS, bind, make_socket, receive_frames, socket_endpoint
from vllm_obs.engine.wire import MAX_FRAME_BYTES, MAX_FRAMES

Socket = zmq.Socket[bytes]
Make = Callable[..., Socket]


@pytest.fixture
def make() -> Iterator[Make]:
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


@pytest.mark.parametrize("kind", [zmq.ROUTER, zmq.DEALER, zmq.PUSH, zmq.PULL])
def test_every_socket_is_bounded(make: Make, kind: int) -> None:
    made = make(kind, b"me")
    assert made.get(zmq.LINGER) == 0
    assert made.get(zmq.MAXMSGSIZE) == MAX_FRAME_BYTES
    assert made.get(zmq.HANDSHAKE_IVL) == HANDSHAKE_TIMEOUT_MS
    for option in (zmq.SNDHWM, zmq.RCVHWM, zmq.SNDTIMEO, zmq.RCVTIMEO):
        assert 0 < made.get(option) <= 10_000


def test_sending_to_a_stranger_is_an_error_and_not_a_loss(make: Make, run_base: Path) -> None:
    router = make(zmq.ROUTER)
    bind(router, socket_endpoint(str(run_base), "in"))
    with pytest.raises(zmq.ZMQError) as refusal:
        router.send_multipart([b"nobody", b"x"])
    assert refusal.value.errno == zmq.EHOSTUNREACH


def test_a_path_that_does_not_fit_is_refused_with_the_number_and_the_way_out() -> None:
    assert socket_endpoint("/" + "d" * 98, "in").startswith("ipc:///d")
    with pytest.raises(ConfigError, match=r"108 bytes; the limit is 107: set VLLM_OBS_RUN_DIR"):
        socket_endpoint("/" + "d" * 99, "in")


def test_a_place_that_cannot_be_bound_is_a_configuration_error(make: Make) -> None:
    with pytest.raises(ConfigError, match="cannot listen on"):
        bind(make(zmq.PULL), socket_endpoint("/does-not-exist", "out"))


def connected(make: Make, run_base: Path) -> tuple[Socket, Socket]:
    pull, push = make(zmq.PULL), make(zmq.PUSH)
    bind(pull, socket_endpoint(str(run_base), "out"))
    push.connect(socket_endpoint(str(run_base), "out"))
    return pull, push


def test_a_message_of_too_many_frames_is_refused_and_the_next_one_read(make: Make, run_base: Path) -> None:
    pull, push = connected(make, run_base)
    push.send_multipart([b"x"] * (MAX_FRAMES + 10))
    push.send_multipart([b"a", b"b"])
    with pytest.raises(WireError, match=f"{MAX_FRAMES + 10} frames"):
        receive_frames(pull)
    assert receive_frames(pull) == [b"a", b"b"]


def test_waiting_for_a_message_has_a_deadline(make: Make, run_base: Path) -> None:
    pull, _ = connected(make, run_base)
    with pytest.raises(zmq.Again):
        receive_frames(pull)


def test_strangers_are_cut_off_and_the_others_served(make: Make, run_base: Path) -> None:
    pull, push = connected(make, run_base)
    path = str(run_base / "out.sock")
    garbage = [b"GET / HTTP/1.1\r\n\r\n", b"\xff" + b"\x00" * 8 + b"\x7f\x01", b"\x16\x03\x01" * 50]
    strangers = [sockets.socket(sockets.AF_UNIX) for _ in range(len(garbage) + 20)]
    try:
        for index, stranger in enumerate(strangers):
            stranger.settimeout(3 * HANDSHAKE_TIMEOUT_MS / 1e3)
            stranger.connect(path)
            if index < len(garbage):
                stranger.sendall(garbage[index])
        push.send_multipart([b"a", b"b"])
        assert receive_frames(pull) == [b"a", b"b"]
        begun = time.monotonic()
        for stranger in strangers:
            read_to_the_end(stranger)
        assert time.monotonic() - begun < 3 * HANDSHAKE_TIMEOUT_MS / 1e3
        push.send_multipart([b"c", b"d"])
        assert receive_frames(pull) == [b"c", b"d"]
    finally:
        for stranger in strangers:
            stranger.close()


def read_to_the_end(stranger: sockets.socket) -> None:
    """Read until the other side closes; TimeoutError when it does not."""
    try:
        while stranger.recv(4096):
            pass
    except ConnectionResetError:
        return

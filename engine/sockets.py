"""The one place that makes ZeroMQ sockets, so that every one of them is bounded in size, number and time."""

import os
from collections.abc import Sequence
from pathlib import Path

import zmq

from vllm_obs.engine.codec_arrays import Buffer
from vllm_obs.engine.codec_plain import WireError
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.wire import MAX_FRAME_BYTES, MAX_FRAMES

HIGH_WATER_MARK = 4096
"""Messages queued in each direction before a sender has to wait."""
SEND_TIMEOUT_MS = 5_000
RECEIVE_TIMEOUT_MS = 1_000
HANDSHAKE_TIMEOUT_MS = 3_000
MAX_SOCKET_PATH_BYTES = 107
"""What Linux allows for the path of a Unix-domain socket."""

_OPTIONS = {
    zmq.LINGER: 0,
    zmq.MAXMSGSIZE: MAX_FRAME_BYTES,
    zmq.SNDHWM: HIGH_WATER_MARK,
    zmq.RCVHWM: HIGH_WATER_MARK,
    zmq.SNDTIMEO: SEND_TIMEOUT_MS,
    zmq.RCVTIMEO: RECEIVE_TIMEOUT_MS,
    zmq.HANDSHAKE_IVL: HANDSHAKE_TIMEOUT_MS,
}


def make_socket(
    context: "zmq.Context[zmq.Socket[bytes]]", kind: int, identity: bytes = b""
) -> "zmq.Socket[bytes]":
    """A socket of that kind with our limits; a ROUTER refuses to send to an identity it does not know."""
    socket = context.socket(kind)
    for option, value in _OPTIONS.items():
        socket.set(option, value)
    # Where a ZAP domain is set libzmq refuses peers of its first two protocols, which take garbage for messages.
    socket.set(zmq.ZAP_DOMAIN, b"vllm-obs")
    if kind == zmq.ROUTER:
        socket.set(zmq.ROUTER_MANDATORY, 1)
    if identity:
        socket.set(zmq.IDENTITY, identity)
    return socket


def socket_endpoint(run_dir: str, name: str) -> str:
    """The endpoint of a Unix-domain socket in the run directory; ConfigError when its path is too long."""
    path = str(Path(run_dir) / f"{name}.sock")
    num_bytes = len(os.fsencode(path))
    if num_bytes > MAX_SOCKET_PATH_BYTES:
        raise ConfigError(
            f"the socket path {path} has {num_bytes} bytes; the limit is {MAX_SOCKET_PATH_BYTES}:"
            " set VLLM_OBS_RUN_DIR to a shorter directory"
        )
    return f"ipc://{path}"


def bind(socket: "zmq.Socket[bytes]", endpoint: str, peer_pid: int | None = None) -> None:
    """Bind, or ConfigError with the system's reason. Only `peer_pid`, if given, gets in (Unix-domain sockets)."""
    if peer_pid is not None:
        socket.set(zmq.IPC_FILTER_PID, peer_pid)
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        raise ConfigError(f"cannot listen on {endpoint}: {error.strerror}") from None


def receive_frames(socket: "zmq.Socket[bytes]", flags: int = 0) -> list[bytes]:
    """The next message's frames. A message of more frames than any of ours is read to its end and refused.

    Raises zmq.Again when nothing came in time, WireError("parts") for too many frames.
    """
    frames = [socket.recv(flags)]
    num_left_out = 0
    while socket.get(zmq.RCVMORE):
        frame = socket.recv()
        if len(frames) <= MAX_FRAMES:
            frames.append(frame)
        else:
            num_left_out += 1
    if num_left_out:
        raise WireError("parts", f"{len(frames) + num_left_out} frames; the limit is {MAX_FRAMES}")
    return frames


def send_frames(socket: "zmq.Socket[bytes]", frames: Sequence[Buffer], flags: int = 0) -> None:
    """Send a message; zmq.Again when the peer's queue stayed full for the send timeout."""
    socket.send_multipart(frames, flags)

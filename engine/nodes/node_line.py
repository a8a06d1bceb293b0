"""NodeLine: one socket between hosts, and the only thread that uses it."""

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

import zmq

from vllm_obs.engine.codec_arrays import Buffer
from vllm_obs.engine.codec_plain import WireError
from vllm_obs.engine.errors import VllmObsError
from vllm_obs.engine.nodes.node_messages import NodeMessage, decode, encode
from vllm_obs.engine.sockets import receive_frames, send_frames
from vllm_obs.engine.wire import FrameEncoder

TICK_SECONDS = 0.25
MAX_UNSENT = 1024
"""Messages that wait for the peer. Steps in flight are few, so that many more mean that it takes none."""
MAX_BURST = 64
LINGER_MS = 300
"""How long the last words may take to go out."""
_JOIN_SECONDS = 5.0

_logger = logging.getLogger(__name__)

Watched = Mapping["zmq.Socket[bytes]", Callable[[], None]]
"""Further sockets of the same context (a door, a monitor), and what to call when one has something."""


class LineFullError(VllmObsError):
    """So many messages wait that one more would only wait longer."""


class LineUser(Protocol):
    """Who speaks over a line. All of it is called by the line's thread, and may not block."""

    def take(self, peer: bytes, message: NodeMessage, body: bytes) -> None:
        """A message came; `peer` is empty but at host 0."""

    def unreachable(self, peer: bytes) -> None:
        """A message to this peer could not be sent: it is not connected any more."""

    def tick(self) -> None:
        """Four times a second."""

    def broken(self, cause: str) -> None:
        """The line's thread ends, nothing comes or goes any more."""


class NodeLine:
    """Owns the socket, and its context, from `start` on. `is_host` is a ROUTER's side, with peers by name."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        socket: "zmq.Socket[bytes]",
        watched: Watched,
        is_host: bool,
    ) -> None:
        self.num_dropped = 0
        self._context = context
        self._socket = socket
        self._watched = watched
        self._is_host = is_host
        self._unsent: deque[tuple[bytes, NodeMessage, Buffer]] = deque()
        self._encoder = FrameEncoder()
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="other hosts", daemon=True)

    def start(self, user: LineUser) -> None:
        """Begin to send and receive."""
        self._user = user
        self._thread.start()

    def send(self, message: NodeMessage, body: Buffer = b"", peer: bytes = b"") -> None:
        """Send in order, from any thread, without waiting. LineFullError when too much waits already."""
        if len(self._unsent) >= MAX_UNSENT:
            raise LineFullError(f"{MAX_UNSENT} messages to another host wait to be sent")
        self._unsent.append((peer, message, body))
        with contextlib.suppress(OSError):  # stopped meanwhile
            os.eventfd_write(self._wake_fd, 1)

    @property
    def num_unsent(self) -> int:
        """How many messages wait."""
        return len(self._unsent)

    def stop(self) -> None:
        """Send what waits, for a moment, and close all. Idempotent."""
        if self._wake_fd < 0:
            return
        self._is_stopping = True
        os.eventfd_write(self._wake_fd, 1)
        if self._thread.ident is None:
            self._context.destroy(linger=0)
        else:
            self._thread.join(_JOIN_SECONDS)
        os.close(self._wake_fd)
        self._wake_fd = -1

    def _run(self) -> None:
        try:
            self._serve()
        except Exception as error:
            _logger.exception("the line to other hosts broke")
            self._user.broken(f"the line to other hosts broke: {type(error).__name__}: {error}")
        finally:
            self._socket.set(zmq.LINGER, LINGER_MS)
            for socket in self._watched:
                socket.close(linger=0)
            self._socket.close()
            self._context.term()

    def _serve(self) -> None:
        poller = zmq.Poller()
        for source in (self._socket, self._wake_fd, *self._watched):
            poller.register(source, zmq.POLLIN)
        ticks_at = time.monotonic()
        while not self._is_stopping:
            has_blocked = not self._send_waiting()
            poller.modify(self._socket, zmq.POLLIN | (zmq.POLLOUT if has_blocked else 0))
            ready = dict(poller.poll(max(0, int((ticks_at - time.monotonic()) * 1e3))))
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake_fd)
            self._receive_waiting()
            for socket, look in self._watched.items():
                if socket in ready:
                    look()
            if time.monotonic() >= ticks_at:
                ticks_at = time.monotonic() + TICK_SECONDS
                self._user.tick()
        self._send_waiting()

    def _send_waiting(self) -> bool:
        """Send until nothing waits; False where the peer takes no more for now."""
        while self._unsent:
            peer, message, body = self._unsent[0]
            try:
                if not self.try_send(message, body, peer):
                    self._user.unreachable(peer)
            except zmq.Again:
                return False
            except WireError as error:  # those behind it may be well
                self.num_dropped += 1
                _logger.error("a %s for another host cannot be sent: %s", type(message).__name__, error)
            self._unsent.popleft()
        return True

    def try_send(self, message: NodeMessage, body: Buffer = b"", peer: bytes = b"") -> bool:
        """Send at once, in the line's own thread; whether the peer is connected. zmq.Again when it takes none."""
        frames = encode(self._encoder, message, body)
        try:
            send_frames(self._socket, [peer, *frames] if self._is_host else frames, zmq.DONTWAIT)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return False
        return True

    def _receive_waiting(self) -> None:
        for _ in range(MAX_BURST):
            try:
                frames = receive_frames(self._socket, zmq.DONTWAIT)
                peer = frames.pop(0) if self._is_host else b""
                message, body = decode(frames)
            except zmq.Again:
                return
            except WireError as error:
                self.num_dropped += 1
                _logger.warning("a message from another host was dropped: %s", error)
                continue
            self._user.take(peer, message, body)

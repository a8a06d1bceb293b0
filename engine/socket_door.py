"""The door of a listening socket: whether its one peer came in, and how many strangers were turned away."""

import contextlib
import struct

import zmq

from vllm_obs.engine.sockets import bind

_EVENT = struct.Struct("=hi")
"""The first frame of what a monitor tells: the kind of event and its value."""


class SocketDoor:
    """A Unix-domain socket that listens for one process.

    A stranger is turned away before a byte of it is read: it holds no descriptor and no identity, and neither do
    many.
    """

    def __init__(self, socket: "zmq.Socket[bytes]", endpoint: str, peer_pid: int) -> None:
        """Bind the socket for that process alone. ConfigError with the system's reason."""
        self.has_peer = False
        self._socket = socket
        self._monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_ACCEPT_FAILED)
        bind(socket, endpoint, peer_pid)

    def look(self) -> int:
        """Read what happened since the last look; how many strangers came."""
        num_strangers = 0
        with contextlib.suppress(zmq.Again):
            while True:
                event, _ = _EVENT.unpack(self._monitor.recv_multipart(zmq.DONTWAIT)[0])
                self.has_peer = self.has_peer or event == zmq.EVENT_HANDSHAKE_SUCCEEDED
                num_strangers += event == zmq.EVENT_ACCEPT_FAILED
        return num_strangers

    def stop_watching(self) -> None:
        """Nobody looks any more."""
        self._socket.disable_monitor()
        self._monitor.close()

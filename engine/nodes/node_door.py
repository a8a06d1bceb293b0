"""NodeDoor: lets in at host 0's socket whoever has the cluster's key, and nobody else.

A peer must know the host's public key (CurveZMQ, RFC 26) to speak at all; which peers may stay is asked over ZAP
(RFC 27), here. Both keys follow from the secret.
"""

import hmac
import logging

import zmq

from vllm_obs.engine.nodes.cluster_key import ClusterKeys
from vllm_obs.engine.sockets import make_socket

_ZAP_ENDPOINT = "inproc://zeromq.zap.01"
_ZAP_VERSION = b"1.0"
_NUM_ZAP_FRAMES = 7

_logger = logging.getLogger(__name__)


class NodeDoor:
    """Answers libzmq's question about every peer. Made before the socket is bound; used by the socket's thread."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", keys: ClusterKeys) -> None:
        from zmq.utils import z85

        self._allowed = z85.decode(keys.nodes.public)
        self.num_refused = 0
        self.socket = make_socket(context, zmq.REP)
        self.socket.bind(_ZAP_ENDPOINT)

    def look(self) -> None:
        """Answer one question, if there is one."""
        try:
            frames = self.socket.recv_multipart(zmq.DONTWAIT)
        except zmq.Again:
            return
        request_id = frames[1] if len(frames) > 1 else b""
        code, text = (b"200", b"OK") if self._may_enter(frames) else (b"400", b"not of this cluster")
        if code != b"200":
            self.num_refused += 1
            if self.num_refused == 1:
                _logger.warning("a peer without the cluster's key tried to connect")
        self.socket.send_multipart([_ZAP_VERSION, request_id, code, text, b"", b""])

    def _may_enter(self, frames: list[bytes]) -> bool:
        """Version, request id, domain, address, identity, mechanism, then the peer's public key."""
        if len(frames) != _NUM_ZAP_FRAMES or frames[0] != _ZAP_VERSION or frames[5] != b"CURVE":
            return False
        return hmac.compare_digest(frames[6], self._allowed)


def guard(socket: "zmq.Socket[bytes]", keys: ClusterKeys) -> None:
    """Make it host 0's end: only peers that know its key are understood."""
    socket.set(zmq.CURVE_SERVER, 1)
    socket.set(zmq.CURVE_SECRETKEY, keys.host.secret)


def prove(socket: "zmq.Socket[bytes]", keys: ClusterKeys) -> None:
    """Make it another host's end: it speaks to host 0 only, and shows that it has the key."""
    socket.set(zmq.CURVE_SERVERKEY, keys.host.public)
    socket.set(zmq.CURVE_PUBLICKEY, keys.nodes.public)
    socket.set(zmq.CURVE_SECRETKEY, keys.nodes.secret)

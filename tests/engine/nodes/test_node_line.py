"""What waits on a line is sent in order, and one message that cannot be sent holds up no other."""

from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest
import zmq

from vllm_obs.engine.codec_arrays import Buffer
from vllm_obs.engine.nodes import node_messages
from vllm_obs.engine.nodes.node_line import NodeLine
from vllm_obs.engine.nodes.node_messages import Farewell, NodeMessage, RingBytes, ToRanks, decode


class FakeSocket:
    """Keeps what is sent; `is_full` says that the peer takes nothing."""

    def __init__(self) -> None:
        self.sent: list[NodeMessage] = []
        self.is_full = False

    def send_multipart(self, frames: Sequence[Buffer], flags: int) -> None:
        if self.is_full:
            raise zmq.Again
        self.sent.append(decode(frames)[0])


@pytest.fixture
def socket() -> FakeSocket:
    return FakeSocket()


@pytest.fixture
def line(socket: FakeSocket) -> Iterator[NodeLine]:
    """An agent's, whose thread does not run."""
    context: zmq.Context[Any] = zmq.Context()
    made = NodeLine(context, cast("zmq.Socket[bytes]", socket), {}, is_host=False)
    yield made
    made.stop()


def test_a_message_that_cannot_be_sent_is_dropped_alone(
    line: NodeLine, socket: FakeSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_messages, "MAX_BODY_BYTES", 99)
    line.send(ToRanks(1))
    line.send(RingBytes(1), bytes(100))
    line.send(Farewell(0))
    assert line._send_waiting()
    assert socket.sent == [ToRanks(1), Farewell(0)]
    assert (line.num_dropped, line.num_unsent) == (1, 0)


def test_what_the_peer_does_not_take_waits(line: NodeLine, socket: FakeSocket) -> None:
    socket.is_full = True
    line.send(ToRanks(1))
    assert not line._send_waiting()
    socket.is_full = False
    assert line._send_waiting()
    assert socket.sent == [ToRanks(1)]

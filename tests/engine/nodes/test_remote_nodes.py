"""Host 0's view of the agents over a line that is a fake: who is taken, who is refused, and for how long."""

from typing import Any

import pytest
from agent_process import cluster_config

from vllm_obs.engine.codec_arrays import Buffer
from vllm_obs.engine.nodes import remote_nodes
from vllm_obs.engine.nodes.node_line import LineFullError
from vllm_obs.engine.nodes.node_messages import Greeting, NodeMessage, Ping, Refusal, Welcome
from vllm_obs.engine.nodes.node_settings import node_settings
from vllm_obs.engine.nodes.remote_nodes import RemoteNodes

CONFIG = cluster_config()


class FakeLine:
    """Keeps what is sent; every peer is connected, as a half-open connection seems to be."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, NodeMessage]] = []
        self.is_full = False
        self.is_stopped = False

    def start(self, user: Any) -> None:
        return

    def send(self, message: NodeMessage, body: Buffer = b"", peer: bytes = b"") -> None:
        if self.is_full:
            raise LineFullError("1024 messages to another host wait to be sent")
        self.sent.append((peer, message))

    def try_send(self, message: NodeMessage, body: Buffer = b"", peer: bytes = b"") -> bool:
        return True

    def stop(self) -> None:
        self.is_stopped = True


class FakeListener:
    """Has no records, and notes the failures."""

    def __init__(self) -> None:
        self.causes: list[str] = []

    def replied(self, rank: int, body: bytes, offset_ns: int) -> None:
        return

    def ring_positions(self, host: str) -> bytes:
        return b""

    def recorded(self, host: str, body: bytes, offset_ns: int) -> None:
        return

    def failed(self, cause: str) -> None:
        self.causes.append(cause)


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> FakeLine:
    made = FakeLine()

    def listen(context: Any, config: Any) -> FakeLine:
        context.destroy(linger=0)
        return made

    monkeypatch.setattr(remote_nodes, "_listen", listen)
    return made


def greeting(node_rank: int = 1, changes: dict[str, str] | None = None) -> Greeting:
    return Greeting(node_rank, "host-b", 4711, {**node_settings(CONFIG), **(changes or {})})


def test_a_second_host_of_the_same_rank_is_refused_for_now_only(line: FakeLine) -> None:
    """It may be the same host, started anew within the time of its silence."""
    listener = FakeListener()
    nodes = RemoteNodes(CONFIG, listener)
    nodes.take(b"first", greeting(), b"")
    nodes.take(b"second", greeting(), b"")
    assert [(peer, type(message)) for peer, message in line.sent[:2]] == [(b"first", Welcome), (b"first", Ping)]
    cause = "Node_1 (host-b) is there already; host-b has the same --node-rank"
    assert line.sent[2:] == [(b"second", Refusal(cause, is_final=False))]
    assert listener.causes == []


def test_a_host_that_cannot_take_part_is_refused_for_good(line: FakeLine) -> None:
    listener = FakeListener()
    nodes = RemoteNodes(CONFIG, listener)
    nodes.take(b"first", greeting(node_rank=2), b"")
    setting = next(iter(node_settings(CONFIG)))
    nodes.take(b"second", greeting(changes={setting: "another"}), b"")
    assert [isinstance(message, Refusal) and message.is_final for _, message in line.sent] == [True, True]
    assert len(listener.causes) == 1


def test_a_line_that_takes_no_farewell_is_closed_all_the_same(line: FakeLine) -> None:
    nodes = RemoteNodes(CONFIG, FakeListener())
    nodes.take(b"first", greeting(), b"")
    line.is_full = True
    nodes.stop(is_farewell=True)
    assert line.is_stopped

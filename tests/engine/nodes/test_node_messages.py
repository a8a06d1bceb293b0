"""What hosts say to each other comes back as it was, and what is none of it is refused."""

from typing import Any

import pytest

from vllm_obs.engine.codec_plain import WireError
from vllm_obs.engine.nodes import node_messages
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
    decode,
    encode,
)
from vllm_obs.engine.wire import FrameEncoder

MESSAGES: list[NodeMessage] = [
    Greeting(1, "host-b", 4711, {"model.dtype": "float32"}),
    Welcome({"model": {"dtype": "float32"}}, b"positions"),
    Refusal("no", False),
    Farewell(3),
    Ping(5, True),
    Pong(5, 6, 7),
    ToRanks(1),
    FromRank(2),
    RankSaid(2, "LOADED", [1, 2, [["load weights", 0.5]]]),
    NodeFailed("Worker_TP1 was killed by SIGKILL", 70),
    RingBytes(9),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_comes_back_as_it_was(message: NodeMessage) -> None:
    assert decode(encode(FrameEncoder(), message)) == (message, b"")
    assert decode(encode(FrameEncoder(), message, b"body")) == (message, b"body")


def test_a_long_body_goes_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_messages, "CHUNK_BYTES", 10)
    body = bytes(range(95))
    frames = encode(FrameEncoder(), ToRanks(1), body)
    assert [len(frame) for frame in frames[2:]] == [10] * 9 + [5]
    assert decode(frames) == (ToRanks(1), body)


def test_a_body_over_the_limit_is_refused_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = encode(FrameEncoder(), ToRanks(1), bytes(100))
    monkeypatch.setattr(node_messages, "MAX_BODY_BYTES", 99)
    with pytest.raises(WireError, match="size"):
        encode(FrameEncoder(), ToRanks(1), bytes(100))
    with pytest.raises(WireError, match="size"):
        decode(frames)


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b""],
        [b"\x40"],
        [b"\x00", b"\x91\x01"],
        [b"\x40", b"\xc1"],
        [b"\x44", b"\x92\x01\x05"],
        [b"GET / HTTP", b""],
    ],
)
def test_what_is_no_message_is_refused(frames: list[Any]) -> None:
    with pytest.raises(WireError):
        decode(frames)

"""What host 0 and the agents of other hosts say to each other: a header, and behind some a body in chunks."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from vllm_obs.engine.codec import read_fields
from vllm_obs.engine.codec_arrays import Buffer
from vllm_obs.engine.codec_plain import WireError
from vllm_obs.engine.wire import FrameEncoder, close_frames, open_frames

CHUNK_BYTES = 32 << 20
"""Of a body; a socket takes frames of twice that."""
MAX_BODY_BYTES = 256 << 20


class Greeting(NamedTuple):
    """An agent's first words: who it is, and all that must be the same on every host (see node_settings.py)."""

    node_rank: int
    hostname: str
    pid: int
    settings: Any


class Welcome(NamedTuple):
    """Host 0 to an agent: start the ranks of this configuration, and send what was recorded past the positions."""

    config: Any
    ring_positions: bytes


class Refusal(NamedTuple):
    """Host 0 to an agent: it cannot take part, for this cause: as it is, if that is final, else for now."""

    cause: str
    is_final: bool


class Farewell(NamedTuple):
    """Host 0 to its agents: the engine was told to end."""

    generation: int


class Ping(NamedTuple):
    """Host 0 to an agent, `sent_at` by its own clock; whether it knows how far that is from the agent's."""

    sent_at: int
    is_offset_known: bool


class Pong(NamedTuple):
    """The answer, at once; `sent_at` is the ping's, the others by the agent's clock."""

    sent_at: int
    received_at: int
    answered_at: int


class ToRanks(NamedTuple):
    """Host 0 to an agent: the body is the `number`th command for each of its ranks, as in shared memory."""

    number: int


class FromRank(NamedTuple):
    """An agent to host 0: the body is a rank's reply, as in shared memory."""

    rank: int


class RankSaid(NamedTuple):
    """An agent to host 0: what a rank said on its status pipe (LOADED, READY)."""

    rank: int
    kind: str
    payload: Any


class NodeFailed(NamedTuple):
    """An agent to host 0: a rank ended, or cannot go on. `exit_code` 78 says that no restart will help."""

    cause: str
    exit_code: int


class RingBytes(NamedTuple):
    """An agent to host 0: the body is what was recorded there (see telemetry/ring_shipping.py)."""

    number: int


NodeMessage = (
    Greeting | Welcome | Refusal | Farewell | Ping | Pong | ToRanks | FromRank | RankSaid | NodeFailed | RingBytes
)

_CODES: dict[type[Any], int] = {
    Greeting: 64,
    Welcome: 65,
    Refusal: 66,
    Farewell: 67,
    Ping: 68,
    Pong: 69,
    ToRanks: 70,
    FromRank: 71,
    RankSaid: 72,
    NodeFailed: 73,
    RingBytes: 74,
}
_KINDS = {code: kind for kind, code in _CODES.items()}


def encode(encoder: FrameEncoder, message: NodeMessage, body: Buffer = b"") -> list[Buffer]:
    """The frames of a message. WireError for what may not travel."""
    if len(body) > MAX_BODY_BYTES:
        raise WireError("size", f"a body of {len(body)} bytes; the limit is {MAX_BODY_BYTES}")
    view = memoryview(body)
    chunks = [view[start : start + CHUNK_BYTES] for start in range(0, len(body), CHUNK_BYTES)]
    return [*encoder.frames(_CODES[type(message)], message), *chunks]


def decode(frames: Sequence[Buffer]) -> tuple[NodeMessage, bytes]:
    """The message in these frames and its body, or WireError."""
    code, values, arrays = open_frames(frames[:2])
    kind = _KINDS.get(code)
    if kind is None:
        raise WireError("type", f"no message between hosts has type {code}")
    message: NodeMessage = close_frames(read_fields(kind, values, arrays), arrays)
    if sum(map(len, frames[2:])) > MAX_BODY_BYTES:
        raise WireError("size", f"a body of more than {MAX_BODY_BYTES} bytes")
    return message, bytes(frames[2]) if len(frames) == 3 else b"".join(frames[2:])

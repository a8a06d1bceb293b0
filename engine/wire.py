"""Messages as frames and back: [type byte][msgpack payload: version, then the fields][raw tensor buffers…]."""

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgpack
import numpy as np

from vllm_obs.engine.codec import read_fields, write_fields
from vllm_obs.engine.codec_arrays import MAX_BUFFERS, ArrayReader, ArrayWriter, Buffer
from vllm_obs.engine.codec_plain import WireError, unpack
from vllm_obs.engine.messages import (
    WIRE_VERSION,
    AbortRequests,
    EngineCoreOutputs,
    EngineCoreRequest,
    RequestType,
    UtilityCall,
)
from vllm_obs.engine.wire_checks import check_outputs, check_request
from vllm_obs.engine.wire_plain import decode_plain, encode_plain, is_plain

MAX_FRAME_BYTES = 64 << 20
"""One frame; sockets close the connection of a peer that sends more."""
MAX_PAYLOAD_BYTES = 8 << 20
"""The msgpack part; what is larger travels as raw frames."""
MAX_FRAMES = 2 + MAX_BUFFERS

HELLO = 16
OUTPUTS = 17
PLAIN_OUTPUTS = 18

EngineMessage = EngineCoreRequest | AbortRequests | UtilityCall


class Hello(NamedTuple):
    """The engine's first frame to an API server: from now on its identity can be routed to."""

    engine_index: int
    generation: int
    pid: int


_REQUEST_KINDS: dict[int, type[Any]] = {
    RequestType.ADD: EngineCoreRequest,
    RequestType.ABORT: AbortRequests,
    RequestType.UTILITY: UtilityCall,
}
_REQUEST_TYPES = {kind: request_type for request_type, kind in _REQUEST_KINDS.items()}
_TYPE_FRAMES = [bytes([code]) for code in range(256)]
_PLAIN_FRAME = _TYPE_FRAMES[PLAIN_OUTPUTS]


class FrameEncoder:
    """Turns messages into frames; one for each thread that sends."""

    def __init__(self) -> None:
        self._writer = ArrayWriter()
        self._packer = msgpack.Packer(default=self._replace, buf_size=1 << 16)

    def request(self, message: EngineMessage) -> list[Buffer]:
        """The frames of a message to the EngineCore."""
        return self.frames(_REQUEST_TYPES[type(message)], message)

    def outputs(self, outputs: EngineCoreOutputs) -> list[Buffer]:
        """The frames of one step's outputs."""
        if not is_plain(outputs):
            return self.frames(OUTPUTS, outputs)
        payload = encode_plain(outputs)
        _check_payload(len(payload), MAX_PAYLOAD_BYTES)
        return [_PLAIN_FRAME, payload]

    def frames(self, code: int, message: Any, max_payload: int = MAX_PAYLOAD_BYTES) -> list[Buffer]:
        """Type byte, payload (`max_payload` bytes at most), buffers; WireError for what may not travel."""
        self._writer.buffers = []
        try:
            payload: bytes = self._packer.pack([WIRE_VERSION, *write_fields(message)])
        except (TypeError, ValueError, OverflowError, struct.error) as error:
            self._packer.reset()
            raise WireError("type", str(error)) from None
        _check_payload(len(payload), max_payload)
        for buffer in self._writer.buffers:
            _check_buffer(len(buffer))
        return [_TYPE_FRAMES[code], payload, *self._writer.buffers]

    def _replace(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return self._writer.write(value)
        if isinstance(value, np.generic):
            return value.item()
        raise TypeError(f"values of type {type(value).__name__} do not travel")


def decode_request(frames: Sequence[Buffer]) -> EngineMessage:
    """The message to the EngineCore in these frames, or WireError (with its owner, where that was readable)."""
    code, values, arrays = open_frames(frames)
    kind = _REQUEST_KINDS.get(code)
    if kind is None:
        raise WireError("type", f"no request has type {code}")
    try:
        message: EngineMessage = close_frames(read_fields(kind, values, arrays), arrays)
        if isinstance(message, EngineCoreRequest):
            check_request(message)
    except WireError as error:
        if kind is EngineCoreRequest:
            _name_owner(error, values)
        raise
    return message


def _name_owner(error: WireError, values: Any) -> None:
    if type(values) is list and len(values) >= 2 and type(values[0]) is str and type(values[1]) is int:
        error.request_id, error.client_index = values[0], values[1]


def decode_outputs(frames: Sequence[Buffer]) -> EngineCoreOutputs:
    """The step's outputs in these frames, columns checked to be parallel, or WireError."""
    if len(frames) == 2 and frames[0] == _PLAIN_FRAME:
        _check_payload(len(frames[1]), MAX_PAYLOAD_BYTES)
        return decode_plain(frames[1])
    outputs: EngineCoreOutputs = decode_as(OUTPUTS, EngineCoreOutputs, frames)
    check_outputs(outputs)
    return outputs


def decode_as(code: int, kind: type[Any], frames: Sequence[Buffer]) -> Any:
    """The NamedTuple of that kind in frames that must have that type byte, or WireError."""
    found, values, arrays = open_frames(frames)
    if found != code:
        raise WireError("type", f"expected type {code}, got {found}")
    return close_frames(read_fields(kind, values, arrays), arrays)


def open_frames(
    frames: Sequence[Buffer], max_payload: int = MAX_PAYLOAD_BYTES
) -> tuple[int, list[Any], ArrayReader]:
    """Type byte, undecoded fields and the raw buffers, after the checks that hold for every message."""
    if not 2 <= len(frames) <= MAX_FRAMES:
        raise WireError("parts", f"{len(frames)} frames; a message has 2 to {MAX_FRAMES}")
    if len(frames[0]) != 1:
        raise WireError("parts", f"a type frame of {len(frames[0])} bytes")
    _check_payload(len(frames[1]), max_payload)
    values = unpack(frames[1])
    if type(values) is not list or not values:
        raise WireError("type", "a payload is a list")
    if type(values[0]) is not int or values[0] != WIRE_VERSION:
        raise WireError("version", f"this side speaks version {WIRE_VERSION}")
    return frames[0][0], values[1:], ArrayReader(frames[2:])


def _check_payload(num_bytes: int, limit: int) -> None:
    if num_bytes > limit:
        raise WireError("size", f"a payload of {num_bytes} bytes; the limit is {limit}")


def _check_buffer(num_bytes: int) -> None:
    """A peer that got more would close the connection, which nobody could open again."""
    if num_bytes > MAX_FRAME_BYTES:
        raise WireError("size", f"an array of {num_bytes} bytes; the limit is {MAX_FRAME_BYTES}")


def close_frames(message: Any, arrays: ArrayReader) -> Any:
    """The message itself, once it is sure that no frame was left over."""
    if not arrays.is_exhausted:
        raise WireError("parts", "frames that the payload does not name")
    return message

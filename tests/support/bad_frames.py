"""Messages an engine must refuse, each with the reason it must give."""

from typing import Any

import msgpack
import numpy as np

from vllm_obs.engine.messages import WIRE_VERSION, EngineCoreRequest, RequestType, SamplingSpec
from vllm_obs.engine.wire import FrameEncoder

ADD, ABORT = bytes([RequestType.ADD]), bytes([RequestType.ABORT])


def sample_request(num_tokens: int = 5, **fields: Any) -> EngineCoreRequest:
    """An ADD with something in every field."""
    prompt = np.arange(num_tokens, dtype=np.int32)
    sampling = SamplingSpec(
        temperature=0.5,
        seed=2**63,
        stop_token_ids=(3, 4),
        logit_bias=((7, -1.5),),
        bad_words_ids=((1, 2), (3,)),
        logprobs=2,
    )
    return EngineCoreRequest("r-1", 0, 3, prompt, sampling, -1, "salt", 17)._replace(**fields)


def payload(*fields: Any, version: Any = WIRE_VERSION) -> bytes:
    """A payload of these fields, good or bad."""
    return bytes(msgpack.packb([version, *fields]))


def add_fields() -> list[Any]:
    """The fields of a small ADD, as they travel."""
    return list(msgpack.unpackb(FrameEncoder().request(sample_request())[1])[1:])


def changed(field: int, value: Any) -> list[bytes]:
    """A small ADD with one field replaced."""
    fields = add_fields()
    fields[field] = value
    return [ADD, payload(*fields)]


def changed_sampling(field: int, value: Any) -> list[bytes]:
    """A small ADD with one field of its sampling replaced."""
    fields = add_fields()
    fields[4][field] = value
    return [ADD, payload(*fields)]


GOOD = [bytes(frame) for frame in FrameEncoder().request(sample_request())]
LARGE = [bytes(frame) for frame in FrameEncoder().request(sample_request(num_tokens=2000))]

BAD_FRAMES: dict[str, tuple[str, list[bytes]]] = {
    "no frames": ("parts", []),
    "one frame": ("parts", [ADD]),
    "2000 frames": ("parts", [*GOOD, *[b"x"] * 2000]),
    "empty type": ("parts", [b"", GOOD[1]]),
    "delimiter": ("parts", [b"", *GOOD]),
    "a frame too many": ("parts", [*GOOD, b""]),
    "empty payload": ("decode", [ADD, b""]),
    "truncated": ("decode", [ADD, GOOD[1][:-1]]),
    "trailing byte": ("decode", [ADD, GOOD[1] + b"\x00"]),
    "top is a map": ("type", [ADD, msgpack.packb({"a": 1})]),
    "top is an int": ("type", [ADD, msgpack.packb(7)]),
    "unknown type": ("type", [b"\xfe", GOOD[1]]),
    "internal type": ("type", [bytes([RequestType.EXECUTOR_FAILED]), GOOD[1]]),
    "unknown version": ("version", [ADD, payload(*add_fields(), version=99)]),
    "version true": ("version", [ADD, payload(*add_fields(), version=True)]),
    "too few fields": ("type", [ADD, payload(*add_fields()[:-1])]),
    "too many fields": ("type", [ADD, payload(*add_fields(), 1)]),
    "the fields of another": ("type", [ABORT, GOOD[1]]),
    "array32 of 4 G": ("decode", [ADD, b"\xdd\xff\xff\xff\xff" + b"\x01" * 15]),
    "map32 of 4 G": ("decode", [ADD, b"\xdf\xff\xff\xff\xff" + b"\xa1a" * 7]),
    "bin32 of 4 G": ("decode", [ADD, b"\xc6\xff\xff\xff\xff" + b"\x01" * 15]),
    "str32 of 4 G": ("decode", [ADD, b"\xdb\xff\xff\xff\xff" + b"\x01" * 15]),
    "ext32 of 4 G": ("decode", [ADD, b"\xc9\xff\xff\xff\xff" + b"\x01" * 15]),
    "ext": ("decode", [ADD, msgpack.packb([WIRE_VERSION, msgpack.ExtType(5, b"x")])]),
    "empty ext": ("decode", [ADD, msgpack.packb([WIRE_VERSION, msgpack.ExtType(5, b"")])]),
    "timestamp": ("decode", [ADD, msgpack.packb([WIRE_VERSION, msgpack.Timestamp(1, 2)])]),
    "bad utf-8": ("decode", [ADD, b"\x92\x01\xa2\xff\xfe"]),
    "int keys": ("decode", [ADD, b"\x92\x01\xdf\x00\x00\x03\xe8" + b"\x05\x06" * 1000]),
    "nested 1500 deep": ("decode", [ADD, b"\x91" * 1500 + b"\xc0"]),
    "pickle": ("decode", [ADD, b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x8c\x06system\x93."]),
    "pickle of protocol 5": (
        "decode",
        [ADD, b"\x80\x05\x95\x1a" + b"\x00" * 7 + b"\x8c\x05posix\x8c\x06system\x93."],
    ),
    "a call in words": ("type", [ADD, payload("__reduce__", "os.system", ["true"])]),
    "a map that names a class": ("type", [ADD, payload({"PickleWrapper": b"cos\nsystem\n(S'ls'\ntR."})]),
    "id is bytes": ("type", changed(0, b"r-1")),
    "client is true": ("type", changed(1, True)),
    "prompt is a list": ("type", changed(3, [1, 2, 3])),
    "prompt of floats": ("type", changed(3, [b"\x00" * 8, "f4", [2]])),
    "prompt of objects": ("type", changed(3, [b"\x00" * 8, "O", [1]])),
    "prompt with two dimensions": ("type", changed(3, [b"\x00" * 16, "i4", [2, 2]])),
    "shape too large": ("type", changed(3, [b"\x00" * 16, "i4", [2**40]])),
    "shape wraps to the size": ("type", changed(3, [b"", "i4", [2**32, 2**32]])),
    "shape of another size": ("type", changed(3, [b"\x00" * 16, "i4", [5]])),
    "negative shape": ("type", changed(3, [b"\x00" * 16, "i4", [-2, -2]])),
    "shape of true": ("type", changed(3, [b"\x00" * 4, "i4", [True]])),
    "half a number": ("type", changed(3, [b"\x00" * 3, "i4", [1]])),
    "frame that is not there": ("type", changed(3, [0, "i4", [1]])),
    "frame index negative": ("type", changed(3, [-1, "i4", [1]])),
    "buffer too short": ("type", [*LARGE[:2], LARGE[2][:-4]]),
    "buffer too long": ("type", [*LARGE[:2], LARGE[2] + b"\x00" * 4]),
    "a buffer twice": ("parts", [*LARGE, LARGE[2]]),
    "temperature NaN": ("type", changed_sampling(0, float("nan"))),
    "temperature infinite": ("type", changed_sampling(0, float("inf"))),
    "temperature text": ("type", changed_sampling(0, "1")),
    "max_tokens true": ("type", changed_sampling(9, True)),
    "max_tokens 1.5": ("type", changed_sampling(9, 1.5)),
    "stop ids 2^64 - 1": ("type", changed_sampling(11, [2**64 - 1])),
    "stop ids cut": ("type", changed_sampling(11, b"i\x00\x00")),
    "stop ids of another width": ("type", changed_sampling(11, b"d" + b"\x00" * 8)),
    "bias with three entries": ("type", changed_sampling(13, [[1, 2.0, 3]])),
    "bad words of text": ("type", changed_sampling(15, ["ab"])),
}

"""Good messages broken in seeded ways: bytes changed, cut and repeated, frames moved, single values replaced."""

import random
from typing import Any

import msgpack

NASTY: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2**31, 2**32, -(2**31) - 1, 2**63 - 1, 2**63, 2**64 - 1, -(2**63),
    0.5, float("nan"), float("inf"), -float("inf"), 1e308, "", "x" * 300, "\x00", b"", b"i", b"q\x00",
    b"i\xff\xff\xff\xff", b"\x80\x04c", [], [[]], [0], [[0, "i4", [1]]], [0, "i4", [2**40]],
    [b"", "f4", [0, 2**31 - 1, 2**31 - 1]], {}, {"a": 1}, {"__reduce__": "os.system"},
    {"PickleWrapper": b"cos\nsystem\n"}, ["__reduce__", "os.system", ["ls"]],
)  # fmt: skip
"""What stands for one value of a message."""

Frames = list[bytes]


def broken(frames: Frames, draw: random.Random) -> Frames:
    """The frames of a good message after one to four breaks; now and then they are good still."""
    result = [bytes(frame) for frame in frames]
    for _ in range(draw.randint(1, 4)):
        result = draw.choice(_BREAKS)(result, draw)
    return result


def _flip(frames: Frames, draw: random.Random) -> Frames:
    """Some bytes of a frame are others."""

    def change(frame: bytes) -> bytes:
        changed = bytearray(frame)
        for _ in range(draw.randint(1, 8)):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        return bytes(changed)

    return _in_one(frames, draw, change)


def _cut(frames: Frames, draw: random.Random) -> Frames:
    """A frame ends too early."""
    return _in_one(frames, draw, lambda frame: frame[: draw.randrange(len(frame))])


def _insert(frames: Frames, draw: random.Random) -> Frames:
    """A frame has bytes in it that were not sent."""

    def change(frame: bytes) -> bytes:
        at = draw.randrange(len(frame) + 1)
        return frame[:at] + draw.randbytes(draw.randint(1, 40)) + frame[at:]

    return _in_one(frames, draw, change)


def _declare(frames: Frames, draw: random.Random) -> Frames:
    """A length is declared that nothing follows."""
    head = draw.choice([b"\xdd", b"\xdf", b"\xc6", b"\xdb", b"\xc9"]) + b"\xff\xff\xff\xff"

    def change(frame: bytes) -> bytes:
        at = draw.randrange(len(frame) + 1)
        return frame[:at] + head + frame[at:]

    return _in_one(frames, draw, change)


def _move(frames: Frames, draw: random.Random) -> Frames:
    """Frames come in another order, twice, or not at all."""
    moved = draw.choices(frames, k=draw.randint(0, len(frames) + 2)) if frames else []
    return draw.choice([moved, frames[::-1], frames[:-1], [*frames, b""], [b"", *frames], frames * 2])


def _replace(frames: Frames, draw: random.Random) -> Frames:
    """One value somewhere in the payload is another."""
    if len(frames) < 2:
        return frames
    try:
        values = msgpack.unpackb(frames[1], strict_map_key=False)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException):
        return frames
    places = list(_places(values))
    if not places:
        return frames
    holder, key = draw.choice(places)
    holder[key] = draw.choice(NASTY)
    return [frames[0], bytes(msgpack.packb(values)), *frames[2:]]


def _places(values: Any) -> Any:
    """(list or map, index or key) of every value."""
    if isinstance(values, list | dict):
        for key in range(len(values)) if isinstance(values, list) else list(values):
            yield values, key
            yield from _places(values[key])


def _in_one(frames: Frames, draw: random.Random, change: Any) -> Frames:
    full = [index for index, frame in enumerate(frames) if frame]
    if not full:
        return frames
    index = draw.choice(full)
    return [*frames[:index], change(frames[index]), *frames[index + 1 :]]


_BREAKS = (_flip, _cut, _insert, _declare, _move, _replace, _replace, _replace)

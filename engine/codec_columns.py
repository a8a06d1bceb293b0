"""Columns of ints as packed machine words: their type is checked once, not entry by entry."""

import struct
from collections.abc import Sequence
from itertools import chain, islice
from typing import Any

_NARROW, _WIDE = b"i", b"q"
_ITEM_BYTES = {_NARROW: 4, _WIDE: 8}


def pack_ints(values: Sequence[int]) -> bytes:
    """A code byte, then the values as int32, or as int64 when one needs it. struct.error for other values."""
    try:
        return _NARROW + struct.pack(f"={len(values)}i", *values)
    except struct.error:
        return _WIDE + struct.pack(f"={len(values)}q", *values)


def unpack_ints(data: Any) -> list[int]:
    """The values `pack_ints` packed; ValueError when these bytes are not such a column."""
    if type(data) is not bytes or data[:1] not in _ITEM_BYTES:
        raise ValueError("expected a column of ints")
    if (len(data) - 1) % _ITEM_BYTES[data[:1]]:
        raise ValueError("a column of ints with part of a number")
    return memoryview(data)[1:].cast(data[:1].decode("ascii")).tolist()  # type: ignore[call-overload, no-any-return]


def pack_int_lists(lists: Sequence[Sequence[int]]) -> list[bytes]:
    """The lengths of the lists and all their values, as two columns."""
    return [pack_ints(list(map(len, lists))), pack_ints(list(chain.from_iterable(lists)))]


def unpack_int_lists(value: Any) -> list[list[int]]:
    """The lists `pack_int_lists` packed; ValueError when the columns do not agree."""
    if type(value) is not list or len(value) != 2:
        raise ValueError("expected two columns of ints")
    lengths, values = unpack_ints(value[0]), unpack_ints(value[1])
    if (lengths and min(lengths) < 0) or sum(lengths) != len(values):
        raise ValueError("lengths and values disagree")
    source = iter(values)
    return [list(islice(source, length)) if length else [] for length in lengths]

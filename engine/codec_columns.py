"""Columns of ints as packed machine words: their type is checked once, not entry by entry."""

import struct
from collections.abc import Sequence
from itertools import chain, compress, islice
from typing import Any

MAX_LISTS = 1 << 16
"""So many lists may a message say that it has; empty ones take no room in it."""
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


def pack_int_lists(lists: Sequence[Sequence[int]]) -> list[Any]:
    """How many lists there are; then which are not empty, their lengths and all their values, as columns."""
    where = list(compress(range(len(lists)), lists))
    filled = [lists[index] for index in where]
    lengths, values = list(map(len, filled)), list(chain.from_iterable(filled))
    return [len(lists), pack_ints(where), pack_ints(lengths), pack_ints(values)]


def unpack_int_lists(value: Any) -> list[list[int]]:
    """The lists `pack_int_lists` packed; ValueError when the columns do not agree."""
    if type(value) is not list or len(value) != 4 or type(value[0]) is not int or not 0 <= value[0] <= MAX_LISTS:
        raise ValueError(f"expected a number of lists, {MAX_LISTS} at most, and three columns of ints")
    where, lengths, values = map(unpack_ints, value[1:])
    if len(where) != len(lengths) or sum(lengths) != len(values) or (lengths and min(lengths) < 0):
        raise ValueError("lengths and values disagree")
    if where and not 0 <= min(where) <= max(where) < value[0]:
        raise ValueError("a list that does not exist")
    lists: list[list[int]] = [[] for _ in range(value[0])]
    source = iter(values)
    for index, length in zip(where, lengths, strict=True):
        lists[index] = list(islice(source, length))
    return lists

"""The running rows' columns of a plan as bytes: of what is the same for all rows, or empty, next to nothing."""

import struct
from collections.abc import Sequence
from itertools import compress

from vllm_obs.engine.codec_columns import pack_ints, unpack_ints
from vllm_obs.engine.plan import StepPlan

_LENGTHS = struct.Struct("=4I")
_SAME = struct.Struct("=cq")
_SAME_CODE = b"="

Columns = tuple[list[list[int]], list[int], list[int], list[int]]
"""running_new_blocks, running_num_computed_tokens, running_last_token_ids, num_scheduled_tokens."""


def pack_columns(plan: StepPlan) -> bytes:
    """The columns, each behind its length. A column of one value throughout is that value alone.

    One function and few calls: a step's plan is made every some milliseconds, by code that has gone cold.
    """
    lists = plan.running_new_blocks
    rows = list(compress(range(len(lists)), lists))
    blocks = [block for row in rows for block in lists[row]]
    lengths = [] if len(blocks) == len(rows) else [len(lists[row]) for row in rows]
    computed, last = pack_ints(plan.running_num_computed_tokens), _pack(plan.running_last_token_ids)
    scheduled, filled = _pack(plan.num_scheduled_tokens), pack_ints([len(rows), *rows, *lengths, *blocks])
    head = _LENGTHS.pack(len(computed), len(last), len(scheduled), len(filled))
    return b"".join((head, computed, last, scheduled, filled))


def unpack_columns(data: bytes, num_running: int, num_rows: int) -> Columns:
    """The columns of a plan of so many rows. ValueError where these bytes do not have them."""
    if len(data) < _LENGTHS.size:
        raise ValueError(f"{len(data)} bytes are no columns")
    lengths, start = _LENGTHS.unpack_from(data), _LENGTHS.size
    if start + sum(lengths) != len(data):
        raise ValueError("columns and their lengths disagree")
    parts = []
    for length in lengths:
        parts.append(data[start : start + length])
        start += length
    computed, last = _unpack(parts[0], num_running), _unpack(parts[1], num_running)
    return _unpack_blocks(parts[3], num_running), computed, last, _unpack(parts[2], num_rows)


def _pack(values: Sequence[int]) -> bytes:
    if values and values[0] == values[-1] and values.count(values[0]) == len(values):
        return _SAME.pack(_SAME_CODE, values[0])
    return pack_ints(values)


def _unpack(data: bytes, num_rows: int) -> list[int]:
    if data[:1] == _SAME_CODE and len(data) == _SAME.size:
        return [_SAME.unpack(data)[1]] * num_rows
    values = unpack_ints(data)
    if len(values) != num_rows:
        raise ValueError(f"a column of {len(values)} rows, where there are {num_rows}")
    return values


def _unpack_blocks(data: bytes, num_running: int) -> list[list[int]]:
    """How many rows have new blocks; which; how many each, unless it is one each; all the blocks."""
    values = unpack_ints(data)
    num_rows = values[0] if values else -1
    rows, rest = values[1 : 1 + num_rows], values[1 + num_rows :]
    lengths, blocks = ([1] * num_rows, rest) if len(rest) == num_rows else (rest[:num_rows], rest[num_rows:])
    if not 0 <= num_rows == len(rows) == len(set(rows)) == len(lengths) or sum(lengths) != len(blocks):
        raise ValueError("rows, their numbers of blocks and the blocks disagree")
    if rows and not (0 <= min(rows) <= max(rows) < num_running and min(lengths) > 0):
        raise ValueError("blocks of a row that does not exist")
    lists: list[list[int]] = [[] for _ in range(num_running)]
    place = 0
    for row, length in zip(rows, lengths, strict=True):
        lists[row] = blocks[place : place + length]
        place += length
    return lists

"""The moments of a record: the latest, for putting records in order of time, and all of them by another clock."""

from collections.abc import Callable
from operator import itemgetter
from typing import Any, get_args

from vllm_obs.telemetry.records import Record, RequestTaken

_NO_MOMENTS = frozenset({"wall_at"})
_FIELDS = {
    kind: tuple(
        index for index, name in enumerate(kind._fields) if name.endswith("_at") and name not in _NO_MOMENTS
    )
    for kind in get_args(Record)
}


def _latest_of(indices: tuple[int, ...]) -> Callable[[tuple[Any, ...]], int]:
    if not indices:
        return lambda fields: 0
    if len(indices) == 1:
        return itemgetter(indices[0])
    moments = itemgetter(*indices)
    return lambda fields: max(moments(fields))


_LATEST = {kind: _latest_of(indices) for kind, indices in _FIELDS.items()}


def moment_of(record: Record) -> int:
    """Its latest moment (monotonic ns); 0 for a record of blocks, which names a step instead."""
    return _LATEST[type(record)](record)


_SENDERS = {RequestTaken: "submitted_at"}
"""Moments that the record's writer was told by an API server, by whose clock they are."""
_OWN_FIELDS = {
    kind: tuple(index for index in fields if kind._fields[index] != _SENDERS.get(kind))
    for kind, fields in _FIELDS.items()
}


def shifted(record: Record, offset_ns: int) -> Record:
    """The record by a clock that is `offset_ns` ahead of its writer's. A moment of 0 is none, and stays."""
    values: list[Any] = list(record)
    for index in _OWN_FIELDS[type(record)]:
        if values[index]:
            values[index] = max(1, values[index] + offset_ns)
    return type(record)(*values)

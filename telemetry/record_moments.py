"""When a record was written, as far as it tells: its latest moment, for putting records in order of time."""

from typing import Any, get_args

from vllm_obs.telemetry.records import Record

_NO_MOMENTS = frozenset({"wall_at"})
_FIELDS = {
    kind: tuple(
        index for index, name in enumerate(kind._fields) if name.endswith("_at") and name not in _NO_MOMENTS
    )
    for kind in get_args(Record)
}


def moment_of(record: Record) -> int:
    """Its latest moment (monotonic ns); 0 for a record of blocks, which names a step instead."""
    fields: tuple[Any, ...] = record
    return max([fields[index] for index in _FIELDS[type(record)]], default=0)

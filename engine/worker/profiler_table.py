"""OperatorTable: where the time of the captured steps went, operator by operator; its sum is the steps' time."""

import statistics
from collections.abc import Iterable
from typing import Any, NamedTuple

from vllm_obs.engine.plan import WorkerMoments
from vllm_obs.engine.worker.profiler_kernels import KernelTable
from vllm_obs.engine.worker.profiler_nest import Nested
from vllm_obs.engine.worker.profiler_step import (
    FORWARD,
    KERNEL,
    LAYER,
    PHASE,
    STEP,
    TORCH,
    CapturedStep,
    Range,
)

NS = 1e9
MAX_ROWS = 4096
MAX_SHOWN = 400
BETWEEN = "(between operators)"
"""Python between operators: the time of a step that no operator accounts for."""
OTHER = "(other)"
"""Of a phase: what came after MAX_ROWS different operators, and all but the MAX_SHOWN that took most."""
BETWEEN_PHASES = "between"
HOST = "host"
"""The kind of what no range but those of steps, phases and layers is for."""
_OPERATORS = (KERNEL, TORCH)


class _Key(NamedTuple):
    """What is added up in one row."""

    phase: str
    kind: str
    name: str
    shapes: str = ""


class _Row:
    """The sums of one."""

    __slots__ = ("flops", "num_bytes", "num_calls", "own_ns", "total_ns")

    def __init__(self) -> None:
        self.num_calls = self.total_ns = self.own_ns = self.flops = self.num_bytes = 0

    def add(self, other: "_Row") -> None:
        """Take another's sums in."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class OperatorTable:
    """Adds up steps; `content` is the table."""

    def __init__(self) -> None:
        self._rows: dict[_Key, _Row] = {}
        self._layers: dict[str, int] = {}
        self._kernels = KernelTable()
        self._moments: list[WorkerMoments] = []
        self._first = self._last = -1

    def add_step(self, step: CapturedStep) -> None:
        """Count a step; its ranges are added one by one."""
        self._moments.append(step.moments)
        self._first = step.step if self._first < 0 else self._first
        self._last = step.step

    def add(self, nested: Nested) -> None:
        """Count a range of the thread that ran the step."""
        one = nested.range
        if one.kind == LAYER:
            self._layers[one.name] = self._layers.get(one.name, 0) + one.ended_at - one.begun_at
        if one.kind in (STEP, PHASE, LAYER):
            row = self._row(_Key(nested.phase or BETWEEN_PHASES, HOST, BETWEEN))
            row.own_ns += nested.own_ns
            row.total_ns += nested.own_ns
            row.num_calls += one.kind != LAYER
        else:
            row = self._row(_Key(nested.phase or BETWEEN_PHASES, one.kind, one.name, one.detail))
            self._count(row, one, nested.own_ns)
        row.num_bytes += nested.num_bytes

    def add_device(self, track: str, one: Range) -> None:
        """Count work on a device, which runs beside the phases and has a table of its own."""
        self._kernels.add(track, one)

    def _row(self, key: _Key) -> _Row:
        row = self._rows.get(key)
        if row is None:
            key = key if len(self._rows) < MAX_ROWS else _Key(key.phase, key.kind, OTHER)
            row = self._rows.setdefault(key, _Row())
        return row

    def _count(self, row: _Row, one: Range, own_ns: int) -> None:
        row.num_calls += 1
        row.total_ns += one.ended_at - one.begun_at
        row.own_ns += own_ns
        row.flops += one.flops

    def _shown_rows(self) -> list[tuple[_Key, _Row]]:
        """Most own time first; the sum is that of all rows."""
        ordered = sorted(self._rows.items(), key=lambda item: -item[1].own_ns)
        shown = dict(ordered[:MAX_SHOWN])
        for key, row in ordered[MAX_SHOWN:]:
            shown.setdefault(_Key(key.phase, key.kind, OTHER), _Row()).add(row)
        return sorted(shown.items(), key=lambda item: -item[1].own_ns)

    def content(self) -> dict[str, Any]:
        """Plain values: the steps, the operators (most own time first), the layers, the kernels of a device.

        Lengths in seconds.

        `accounted_share` (0 to 1) is what operators make of the recorded forward time; the rest is Python.
        """
        lengths = [moments.sampled_at - moments.received_at for moments in self._moments]
        forward_ns = sum(moments.forwarded_at - moments.prepared_at for moments in self._moments)
        operators = [row for key, row in self._rows.items() if key.phase == FORWARD and key.kind in _OPERATORS]
        operators_ns = sum(row.own_ns for row in operators)
        rows = self._shown_rows()
        return {
            "num_steps": len(self._moments),
            "first_step": self._first,
            "last_step": self._last,
            "step_seconds": _seconds(sum(lengths)),
            "median_step_seconds": _seconds(int(statistics.median(lengths))) if lengths else 0.0,
            "max_step_seconds": _seconds(max(lengths, default=0)),
            "forward_seconds": _seconds(forward_ns),
            "operators_forward_seconds": _seconds(operators_ns),
            "accounted_share": operators_ns / forward_ns if forward_ns else 0.0,
            "operators": [_shown(key, row, sum(lengths), forward_ns) for key, row in rows],
            "layers": [{"layer": name, "seconds": _seconds(ns)} for name, ns in _in_order(self._layers.items())],
            **self._kernels.content(),
        }


def _shown(key: _Key, row: _Row, steps_ns: int, forward_ns: int) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "operator": key.name,
        "phase": key.phase,
        "kind": key.kind,
        "num_calls": row.num_calls,
        "total_seconds": _seconds(row.total_ns),
        "self_seconds": _seconds(row.own_ns),
        "share_of_steps": row.own_ns / steps_ns if steps_ns else 0.0,
        "share_of_forward": row.own_ns / forward_ns if forward_ns and key.phase == FORWARD else None,
    }
    extras = {"shapes": key.shapes, "flops": row.flops, "allocated_bytes": row.num_bytes}
    return shown | {name: value for name, value in extras.items() if value}


def _in_order(layers: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    return sorted(layers, key=lambda item: (len(item[0]), item[0]))


def _seconds(length_ns: int) -> float:
    return length_ns / NS

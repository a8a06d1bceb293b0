"""CapturedStep: what was captured of one step, and the ranges that it consists of."""

from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vllm_obs.engine.model.operator_label import OperatorCall, read_label
from vllm_obs.engine.plan import WorkerMoments
from vllm_obs.engine.worker.profiler_torch import TorchEvent

NS = 1_000_000_000

STEP, PHASE, LAYER = "step", "phase", "layer"
"""Kinds of ranges that hold others and are no work of their own."""
KERNEL, TORCH, PYTHON, MEMORY = "kernel", "torch", "python", "memory"

PREPARE, FORWARD, SAMPLE = "prepare", "forward", "sample"
"""The phases of a step, bounded by the moments of its WorkerStep."""


class Program(NamedTuple):
    """Calls of kernels that ran one after another.

    labels: int64 (calls,). times: int64 (calls + 1, 2), seconds and ns (monotonic) before, between and after.
    num_rows: int64 (calls,), or None where nobody asked.
    """

    labels: npt.NDArray[np.int64]
    times: npt.NDArray[np.int64]
    num_rows: npt.NDArray[np.int64] | None = None


class CapturedStep(NamedTuple):
    """One step of one rank."""

    step: int
    num_rows: int
    num_tokens: int
    moments: WorkerMoments
    programs: list[Program]
    events: list[TorchEvent]


class Range(NamedTuple):
    """A named time (monotonic ns) on one track; `detail` is shapes where they are known."""

    begun_at: int
    ended_at: int
    name: str
    kind: str
    detail: str = ""
    flops: int = 0
    num_bytes: int = 0


def host_ranges(step: CapturedStep) -> list[Range]:
    """All ranges on the thread that ran the step, whole before part."""
    ranges = [*_frame(step)]
    for program in step.programs:
        ranges += _program_ranges(program)
    ranges += [_torch_range(event) for event in step.events if not event.track and _is_within(event, step.moments)]
    ranges.sort(key=lambda each: (each.begun_at, -each.ended_at))
    return ranges


def _is_within(event: TorchEvent, moments: WorkerMoments) -> bool:
    """Whether an event belongs to the step; a call of Python only inside a phase, lest it hide the phases."""
    if not event.is_python:
        return moments.received_at <= event.ended_at and event.begun_at <= moments.sampled_at
    phases = (
        (moments.received_at, moments.prepared_at),
        (moments.prepared_at, moments.forwarded_at),
        (moments.sample_begun_at, moments.sampled_at),
    )
    return any(begun_at <= event.begun_at and event.ended_at <= ended_at for begun_at, ended_at in phases)


def device_ranges(step: CapturedStep) -> list[tuple[str, Range]]:
    """What ran on streams of devices, with the stream, in order of begin."""
    found = [(event.track, _device_range(event)) for event in step.events if event.track]
    return sorted(found, key=lambda each: each[1].begun_at)


def _frame(step: CapturedStep) -> Iterator[Range]:
    moments = step.moments
    yield Range(moments.received_at, moments.sampled_at, f"engine.step {step.step}", STEP)
    yield Range(moments.received_at, moments.prepared_at, PREPARE, PHASE)
    yield Range(moments.prepared_at, moments.forwarded_at, FORWARD, PHASE)
    yield Range(moments.sample_begun_at, moments.sampled_at, SAMPLE, PHASE)


def _program_ranges(program: Program) -> Iterator[Range]:
    """Each kernel, and each layer around its own."""
    moments = (program.times[:, 0] * NS + program.times[:, 1]).tolist()
    calls = [_call(number) for number in program.labels.tolist()]
    details = [""] * len(calls) if program.num_rows is None else [f"{n} rows" for n in program.num_rows.tolist()]
    for layer, group in groupby(range(len(calls)), key=lambda place: calls[place].layer):
        places = list(group)
        if layer >= 0:
            yield Range(moments[places[0]], moments[places[-1] + 1], f"layer {layer}", LAYER)
        for place in places:
            yield Range(moments[place], moments[place + 1], calls[place].name, KERNEL, details[place])


@lru_cache(maxsize=4096)
def _call(number: int) -> OperatorCall:
    return read_label(number)


def _device_range(event: TorchEvent) -> Range:
    """`num_bytes` are those that a copy moved."""
    shapes, flops, num_bytes = event.shapes, event.flops, event.num_bytes
    return Range(event.begun_at, event.ended_at, event.name, KERNEL, shapes, flops, num_bytes)


def _torch_range(event: TorchEvent) -> Range:
    kind = MEMORY if event.num_bytes else PYTHON if event.is_python else TORCH
    return Range(event.begun_at, event.ended_at, event.name, kind, event.shapes, event.flops, event.num_bytes)

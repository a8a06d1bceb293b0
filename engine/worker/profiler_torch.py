"""TorchCycle: torch's own profiler over one step at a time, its events brought to the clock of the run."""

import os
import re
import time
from typing import Any, NamedTuple

import torch
from torch._C._autograd import DeviceType
from torch.autograd.profiler import profile

os.environ.setdefault("KINETO_LOG_LEVEL", "6")
"""Its library writes two lines to standard error for each cycle; it reads this at the first."""

_MARK = "vllm_obs.mark"
_MEMORY = "[memory]"
_COPIES = ("Memcpy", "Memset")
_BYTES = re.compile(r'"bytes": (\d+)')
_NUM_MARKS = 2
_CPU = torch.device("cpu").type


class TorchEvent(NamedTuple):
    """One operator, kernel, allocation (`num_bytes`, may be negative) or call of Python; monotonic ns.

    A copy on a device has the bytes it moved, a kernel the operations of the operator that it did most of; one of
    ours has both, of its launch (profiler_launches).
    `track` is empty on the thread that runs the steps, else which stream of which device it ran on.
    """

    begun_at: int
    ended_at: int
    name: str
    track: str = ""
    is_python: bool = False
    shapes: str = ""
    flops: int = 0
    num_bytes: int = 0


class TorchCycle:
    """A cycle for each step: its cost (half a millisecond, and 3 µs an event) falls into that very step.

    One cycle over many steps would hold the interpreter's lock for all their events at its end. `begin` and
    `end` are called from the thread that runs the steps. `options` are of profile_order.OPTIONS.
    """

    def __init__(self, device: str, options: tuple[str, ...]) -> None:
        self._use_device = None if device == _CPU else device
        self._with_shapes = "shapes" in options or "flops" in options
        self._options = options
        self._profile: Any = None
        self._marks: list[tuple[int, int]] = []

    def begin(self) -> None:
        """Record from now on."""
        # What torch's documentation calls its backend; the public class around it would write files.
        self._profile = profile(
            use_device=self._use_device,
            record_shapes=self._with_shapes,
            with_flops="flops" in self._options,
            profile_memory="memory" in self._options,
            with_stack="stack" in self._options,
        )
        self._profile.__enter__()
        self._marks = [_mark() for _ in range(_NUM_MARKS)]

    def end(self) -> list[TorchEvent]:
        """What was recorded since `begin`, in no order; nothing where there was none."""
        profiled, self._profile = self._profile, None
        if profiled is None:
            return []
        profiled.__exit__(None, None, None)
        events = profiled.kineto_results.events()
        offset = _offset(events, self._marks)
        flops = _flops_of_kernels(events) if "flops" in self._options else {}
        return [
            self._event(event, offset, flops.get(place, 0))
            for place, event in enumerate(events)
            if _is_work(event)
        ]

    def _event(self, event: Any, offset: int, device_flops: int = 0) -> TorchEvent:
        begun_at = event.start_ns() - offset
        name = event.name()
        is_device = _is_on_device(event)
        return TorchEvent(
            begun_at,
            begun_at + event.duration_ns(),
            name,
            f"device {event.device_index()} stream {event.device_resource_id()}" if is_device else "",
            event.is_python_function(),
            _shapes(event.shapes()) if self._with_shapes else "",
            device_flops if is_device else event.flops(),
            _copied_bytes(event) if is_device else event.nbytes() if name == _MEMORY else 0,
        )


def _is_on_device(event: Any) -> bool:
    return bool(event.device_type() != DeviceType.CPU)


def _is_work(event: Any) -> bool:
    """Ranges that somebody named are drawn on streams as well, over the kernels: no work of the device."""
    is_named = _is_on_device(event) and event.is_user_annotation()
    return not (is_named or event.is_hidden_event() or event.name() == _MARK)


def _copied_bytes(event: Any) -> int:
    """What a copy or a fill moved, as CUPTI tells it."""
    if not event.name().startswith(_COPIES):
        return 0
    found = _BYTES.search(event.metadata_json())
    return int(found[1]) if found else 0


def _flops_of_kernels(events: list[Any]) -> dict[int, int]:
    """Place of a kernel → operations of the operator that launched it; of its kernels the longest has them."""
    operators = {event.correlation_id(): event.flops() for event in events if event.flops()}
    longest: dict[int, int] = {}
    for place, event in enumerate(events):
        operator = event.linked_correlation_id() if _is_on_device(event) else 0
        if operator in operators:
            before = longest.get(operator)
            if before is None or event.duration_ns() > events[before].duration_ns():
                longest[operator] = place
    return {place: operators[operator] for operator, place in longest.items()}


def _mark() -> tuple[int, int]:
    """A range of no length; when it was entered and left, by the run's clock."""
    mark = torch._C._profiler._RecordFunctionFast(_MARK)
    begun_at = time.monotonic_ns()
    with mark:
        pass
    return begun_at, time.monotonic_ns()


def _offset(events: list[Any], marks: list[tuple[int, int]]) -> int:
    """What torch's clock is ahead of the run's: by the mark that was met in the least time."""
    found = [event for event in events if event.name() == _MARK]
    differences = [
        (ended_at - begun_at, event.start_ns() + event.duration_ns() // 2 - (begun_at + ended_at) // 2)
        for event, (begun_at, ended_at) in zip(found, marks, strict=False)
    ]
    return min(differences, default=(0, time.time_ns() - time.monotonic_ns()))[1]


def _shapes(shapes: list[list[int]]) -> str:
    return ", ".join("×".join(map(str, shape)) for shape in shapes if shape)

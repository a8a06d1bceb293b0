"""The file of a SampleSet: one JSON object, written in small pieces so that no thread waits long for the GIL."""

import json
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from vllm_obs.telemetry.sample_set import Frame, SampleCost, SampleSet, StackRun, ThreadSamples

SUFFIX = ".samples.json"
MAX_FILE_BYTES = 32 << 20
MAX_ENTRIES = 200_000
"""Frames, stacks and runs that are read, each."""
_PIECE = 64
"""Entries turned into text at a time: a few dozen microseconds."""


class SampleFileError(ValueError):
    """A file of samples that is none, or is too large."""


def write_samples(path: Path, samples: SampleSet) -> None:
    """Write the file, whole or not at all, readable by this user alone. Raises OSError."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            for piece in _pieces(samples):
                file.write(piece)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _pieces(samples: SampleSet) -> Iterator[str]:
    head = samples._replace(frames=[], stacks=[], threads=[])._asdict()
    for name in ("frames", "stacks", "threads"):
        del head[name]
    head["cost"] = samples.cost._asdict()
    yield json.dumps(head)[:-1] + ',\n"frames":'
    yield from _array(samples.frames)
    yield ',\n"stacks":'
    yield from _array(samples.stacks)
    yield ',\n"threads":['
    for index, thread in enumerate(samples.threads):
        yield (",\n" if index else "\n") + json.dumps({"name": thread.name, "tid": thread.tid})[:-1] + ',"runs":'
        yield from _array(thread.runs)
        yield "}"
    yield "]}\n"


def _array(entries: list[Any]) -> Iterator[str]:
    yield "["
    for start in range(0, len(entries), _PIECE):
        yield (",\n" if start else "") + json.dumps(entries[start : start + _PIECE])[1:-1]
    yield "]"


def read_samples(path: Path) -> SampleSet:
    """The samples in a file. SampleFileError for what is no such file, or over 32 MiB; OSError."""
    num_bytes = path.stat().st_size
    if num_bytes > MAX_FILE_BYTES:
        raise SampleFileError(f"{path.name} has {num_bytes} bytes; the limit is {MAX_FILE_BYTES}")
    try:
        samples = _read(json.loads(path.read_bytes()))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        raise SampleFileError(f"{path.name} holds no samples: {error!r}"[:200]) from None
    _check(samples, path.name)
    return samples


def _read(content: dict[str, Any]) -> SampleSet:
    return SampleSet(
        profile=str(content["profile"]),
        role=str(content["role"]),
        pid=int(content["pid"]),
        sampler=str(content["sampler"]),
        rate_hz=_finite(content["rate_hz"]),
        begun_at=int(content["begun_at"]),
        ended_at=int(content["ended_at"]),
        frames=[Frame(str(name), str(file), int(line)) for name, file, line in content["frames"]],
        stacks=[[int(index) for index in stack] for stack in content["stacks"]],
        threads=[_read_thread(thread) for thread in content["threads"]],
        is_in_order=bool(content["is_in_order"]),
        num_unplaced=int(content["num_unplaced"]),
        cost=_read_cost(**content["cost"]),
    )


def _read_cost(num_looks: int, num_missed: int, cpu_seconds: float, wall_seconds: float) -> SampleCost:
    return SampleCost(int(num_looks), int(num_missed), _finite(cpu_seconds), _finite(wall_seconds))


def _finite(value: Any) -> float:
    """ValueError for what is no number, or none that can be added up."""
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{number} is not finite")
    return number


def _read_thread(thread: dict[str, Any]) -> ThreadSamples:
    runs = [
        StackRun(int(stack), int(num), _finite(seconds), _finite(cpu), int(num_ran))
        for stack, num, seconds, cpu, num_ran in thread["runs"]
    ]
    return ThreadSamples(str(thread["name"]), int(thread["tid"]), runs)


def _check(samples: SampleSet, name: str) -> None:
    num_runs = sum(len(thread.runs) for thread in samples.threads)
    most = max(len(samples.frames), len(samples.stacks), num_runs)
    if most > MAX_ENTRIES:
        raise SampleFileError(f"{name} has {most} entries of one kind; the limit is {MAX_ENTRIES}")
    stacks = (run.stack for thread in samples.threads for run in thread.runs)
    frames = (index for stack in samples.stacks for index in stack)
    if not _all_in(stacks, len(samples.stacks)) or not _all_in(frames, len(samples.frames)):
        raise SampleFileError(f"{name} names a stack or a frame that it does not hold")


def _all_in(indices: Iterable[int], size: int) -> bool:
    return all(0 <= index < size for index in indices)

"""PySpy: samples a process from outside with py-spy, where that is installed and the kernel lets us look."""

import asyncio
import contextlib
import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any, NamedTuple

from vllm_obs.telemetry.sample_file import MAX_FILE_BYTES, SUFFIX, write_samples
from vllm_obs.telemetry.sample_job import SampleEnd, SampleOrder
from vllm_obs.telemetry.sample_positions import MAX_NAME_CHARS, roots_of, short_file
from vllm_obs.telemetry.sample_set import PY_SPY, UNKNOWN, Frame, SampleSet, StackRun, ThreadSamples
from vllm_obs.telemetry.sample_thread_times import spread, thread_seconds
from vllm_obs.telemetry.sample_threads import MAX_NAME_CHARS as MAX_THREAD_CHARS

GRACE_SECONDS = 10.0
"""Beyond the time of sampling: it reads the symbols of the interpreter first and writes at the end."""
MAX_ERROR_BYTES = 4096

_THREAD = re.compile(r'^(?:Process \d+ )?Thread (\d+)(?: "(.*)")?$', re.DOTALL)


class PySpyError(Exception):
    """py-spy sampled nothing; the words say why."""


class Target(NamedTuple):
    """A process of the tree."""

    role: str
    pid: int


def why_not(pid: int) -> str:
    """Why this process may not read the memory of another; empty if it may. The right is that of ptrace."""
    try:
        os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY))
    except FileNotFoundError:
        return f"there is no process {pid}"
    except OSError:
        return "the kernel does not permit it (ptrace)"
    return ""


async def sample_from_outside(program: str, target: Target, order: SampleOrder) -> SampleEnd:
    """Sample a process, never pausing it, and write its file. What goes wrong is said in the end's `error`.

    It ends at the order's seconds plus 10 s at the latest: py-spy is killed then, as when the caller is cancelled.
    """
    directory = Path(order.directory)
    found = directory / f".{target.role}.py-spy.json"
    begun_at = ended_at = time.monotonic_ns()
    try:
        before = thread_seconds(target.pid)
        await _record(program, target.pid, order, found)
        after, ended_at = thread_seconds(target.pid), time.monotonic_ns()
        samples = await asyncio.to_thread(_convert, found, target, order, (begun_at, ended_at))
        samples = samples._replace(threads=[spread(thread, before, after) for thread in samples.threads])
        path = directory / f"{target.role}{SUFFIX}"
        await asyncio.to_thread(write_samples, path, samples)
        return SampleEnd(samples.num_samples, ended_at, time.monotonic_ns(), [path.name], "")
    except (PySpyError, OSError) as error:
        return SampleEnd(0, ended_at, time.monotonic_ns(), [], str(error))
    finally:
        found.unlink(missing_ok=True)


async def _record(program: str, pid: int, order: SampleOrder, found: Path) -> None:
    bounds = order.bounds
    command = [program, "record", "--nonblocking", "--idle", "--format", "speedscope", "--pid", str(pid)]
    # It counts whole seconds only.
    command += ["--duration", str(max(1, round(bounds.seconds))), "--rate", str(round(bounds.rate_hz))]
    command += ["--output", str(found)]
    with tempfile.TemporaryFile() as errors:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=errors,
            env={"PATH": os.defpath, "RUST_BACKTRACE": "0"},
        )
        try:
            async with asyncio.timeout(bounds.seconds + GRACE_SECONDS):
                code = await process.wait()
        except TimeoutError:
            raise PySpyError(
                f"py-spy was killed: not done {GRACE_SECONDS:g} s after the {bounds.seconds:g} s it was to sample"
            ) from None
        finally:
            await _end(process)
        if code or not found.exists():
            raise PySpyError(f"py-spy ended with code {code}: {_first_error(errors)}")


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _first_error(errors: IO[bytes]) -> str:
    errors.seek(0)
    lines = errors.read(MAX_ERROR_BYTES).decode(errors="replace").splitlines()
    return next((line.strip() for line in lines if line.startswith("Error")), "it gave no reason")[:200]


def _convert(found: Path, target: Target, order: SampleOrder, span: tuple[int, int]) -> SampleSet:
    num_bytes = found.stat().st_size
    if num_bytes > MAX_FILE_BYTES:
        raise PySpyError(f"py-spy wrote {num_bytes} bytes; the limit is {MAX_FILE_BYTES}")
    try:
        return read_py_spy(json.loads(found.read_bytes()), target, order, span)
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise PySpyError(f"what py-spy wrote cannot be read: {error!r}"[:200]) from None


def read_py_spy(content: dict[str, Any], target: Target, order: SampleOrder, span: tuple[int, int]) -> SampleSet:
    """The samples in what `py-spy record --format speedscope --idle` wrote; `span` is when it began and ended.

    It does not tell who ran. Raises KeyError, TypeError, ValueError or IndexError for what is no such content.
    """
    stacks: dict[tuple[int, ...], int] = {}
    threads = [_thread(profile, target.pid, stacks) for profile in content["profiles"]]
    return SampleSet(
        profile=order.profile,
        role=target.role,
        pid=target.pid,
        sampler=PY_SPY,
        rate_hz=order.bounds.rate_hz,
        begun_at=span[0],
        ended_at=span[1],
        frames=[_frame(frame) for frame in content["shared"]["frames"]],
        stacks=[list(stack) for stack in stacks],
        threads=threads,
    )


def _thread(profile: dict[str, Any], pid: int, stacks: dict[tuple[int, ...], int]) -> ThreadSamples:
    told = _THREAD.match(str(profile["name"]))
    tid, name = (int(told[1]), told[2]) if told else (0, str(profile["name"]))
    # It finds the names in `threading`, which a small process may not have loaded.
    name = name or ("MainThread" if tid == pid else f"thread {tid}")
    runs: list[StackRun] = []
    for indices, seconds in zip(profile["samples"], profile["weights"], strict=True):
        stack = stacks.setdefault(tuple(indices), len(stacks))
        if runs and runs[-1].stack == stack:
            last = runs[-1]
            runs[-1] = last._replace(num_samples=last.num_samples + 1, seconds=last.seconds + seconds)
        else:
            runs.append(StackRun(stack, 1, float(seconds), 0.0, UNKNOWN))
    return ThreadSamples(name[:MAX_THREAD_CHARS], tid, runs)


def _frame(frame: dict[str, Any]) -> Frame:
    """Of a file outside every package py-spy tells the whole path."""
    file = str(frame.get("file") or "")
    if file.startswith("/"):
        file = short_file(file, roots_of(sys.path))
    return Frame(str(frame["name"])[:MAX_NAME_CHARS], file[:MAX_NAME_CHARS], int(frame.get("line") or 0))

"""ProcessStacks: the Python stacks of a run's processes, by a signal they answer, else by py-spy, or why not."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from vllm_obs.telemetry.process_reader import ProcessReader
from vllm_obs.telemetry.ring import RingError
from vllm_obs.telemetry.ring_reader import RingReader
from vllm_obs.telemetry.stack_dump import STACK_SIGNAL, STACKS_SUFFIX

SIGNAL_SECONDS = 1.0
PY_SPY_SECONDS = 3.0
SETTLE_SECONDS = 0.1
"""A text that has not grown for so long is whole: on cores that are busy its writer may pause in the middle."""
POLL_SECONDS = 0.02
MAX_TEXT_BYTES = 512 * 1024
MAX_PROCESSES = 64
MAX_PY_SPY = 4
"""So many processes at most are read from outside at a time: each costs a second of a core."""

TURN_SECONDS = 10.0

FAULTHANDLER, PY_SPY = "faulthandler", "py-spy"
_STOPPED, _DEAD = "Tt", "ZX"
_TURN = threading.Lock()
"""Two that take the stacks of one process at once would each cut off the other's text."""


class ProcessStacks(NamedTuple):
    """The stacks of one process: `how` they were taken (empty if they were not), and what was not to be had."""

    title: str
    pid: int
    how: str
    text: str
    says: str


class _Asked(NamedTuple):
    """A process that was sent the signal, and the file it answers into."""

    title: str
    pid: int
    path: Path


def take_stacks(run_dir: Path, timeout_seconds: float = SIGNAL_SECONDS) -> dict[str, str]:
    """By the title of each live process of the run its stacks, or why there are none. Blocks; see `stacks_of`."""
    taken = stacks_of(run_dir, timeout_seconds=timeout_seconds)
    return {stacks.title: stacks.text or stacks.says for stacks in taken}


def stacks_of(
    run_dir: Path, pids: Collection[int] | None = None, timeout_seconds: float = SIGNAL_SECONDS
) -> list[ProcessStacks]:
    """The stacks of these processes of the run, or of all that live, by title.

    Blocks for `timeout_seconds` at most while they answer, and a few seconds more where py-spy has to be asked.
    TimeoutError if others take stacks all the time.
    """
    if not _TURN.acquire(timeout=TURN_SECONDS):
        raise TimeoutError(f"others have been taking stacks for {TURN_SECONDS:g} s")
    try:
        return _stacks_of(run_dir, pids, timeout_seconds)
    finally:
        _TURN.release()


def _stacks_of(run_dir: Path, pids: Collection[int] | None, timeout_seconds: float) -> list[ProcessStacks]:
    found = [each for each in live_processes(run_dir) if pids is None or each[1] in pids]
    reader = ProcessReader()
    asked: list[_Asked] = []
    refused: dict[int, str] = {}
    for title, pid in found:
        one = _Asked(title, pid, run_dir / f"{title}{STACKS_SUFFIX}")
        if why := _ask(one, reader):
            refused[pid] = why
        else:
            asked.append(one)
    texts = _answers(asked, timeout_seconds)
    silent = dict.fromkeys((each.pid for each in asked if not texts.get(each.pid)), "it did not answer in time")
    outside = _from_outside({**refused, **silent})
    return [_result(title, pid, texts, outside) for title, pid in found]


def live_processes(run_dir: Path) -> list[tuple[str, int]]:
    """(title, pid) of each process whose ring is open for writing, MAX_PROCESSES at most."""
    found: set[tuple[str, int]] = set()
    for path in sorted(run_dir.glob("*.ring"))[: 4 * MAX_PROCESSES]:
        with contextlib.suppress(RingError, OSError), RingReader(path) as ring:
            header = ring.header()
            # The title names a file of the run directory, and nothing above it.
            if ring.is_writer_alive() and "/" not in header.role:
                found.add((header.role, header.pid))
    return sorted(found)[:MAX_PROCESSES]


def _ask(one: _Asked, reader: ProcessReader) -> str:
    """Empty the file, then send the signal; why not, where the process cannot answer."""
    try:
        pidfd = os.pidfd_open(one.pid)
    except OSError:
        return "it has ended"
    try:
        # All looks come after the descriptor is there: whoever still writes the ring then is who gets the signal,
        # and never another process that has been given the number since.
        if why := _why_not(one, reader):
            return why
        os.truncate(one.path, 0)
        signal.pidfd_send_signal(pidfd, STACK_SIGNAL)
    except OSError:
        return "it could not be sent a signal"
    finally:
        os.close(pidfd)
    return ""


def _why_not(one: _Asked, reader: ProcessReader) -> str:
    """Why a process cannot answer; empty if it can be asked."""
    state = reader.state_of(one.pid)
    if not _writes(one.path.with_name(f"{one.title}.ring"), one.pid):
        return "it has ended"
    if state and state in _STOPPED:
        return "it is stopped by a signal and runs no code"
    if not state or state in _DEAD:
        return "it has ended"
    if not one.path.exists() or not reader.catches(one.pid, STACK_SIGNAL):
        return "it has not registered for it (it may still be starting)"
    return ""


def _writes(path: Path, pid: int) -> bool:
    """Whether that process has this ring open now."""
    try:
        with RingReader(path) as ring:
            return ring.header().pid == pid and ring.is_writer_alive()
    except (RingError, OSError):
        return False


def _answers(asked: Collection[_Asked], timeout_seconds: float) -> dict[int, str]:
    """What has been written by when it is whole, or the time is over; empty texts for those that are silent."""
    deadline = time.monotonic() + timeout_seconds
    sizes: dict[int, tuple[int, float]] = {}
    while time.monotonic() < deadline:
        now = time.monotonic()
        for each in asked:
            size = _size(each.path)
            if sizes.get(each.pid, (0, now))[0] != size:
                sizes[each.pid] = (size, now)
        settled = [pid for pid, (size, since) in sizes.items() if size and now - since >= SETTLE_SECONDS]
        if len(settled) == len(asked):
            break
        time.sleep(POLL_SECONDS)
    return {each.pid: _read(each.path) for each in asked}


def _from_outside(reasons: dict[int, str]) -> dict[int, tuple[str, str]]:
    """By pid the text that py-spy had of a process that gave none, and what to say."""
    program = py_spy()
    told: dict[int, tuple[str, str]] = {}
    for number, (pid, why) in enumerate(reasons.items()):
        if program is None:
            told[pid] = ("", f"No stacks: {why}; py-spy, which could look from outside, is not installed.")
        elif number >= MAX_PY_SPY:
            told[pid] = ("", f"No stacks: {why}; {MAX_PY_SPY} others have been looked at from outside already.")
        else:
            text, error = _py_spy_dump(program, pid)
            says = f"Looked at from outside with py-spy: {why}."
            told[pid] = (
                (text, says) if text else ("", f"No stacks: {why}; py-spy could not look either ({error}).")
            )
    return told


def py_spy() -> str | None:
    """Where py-spy is: beside this Python, or on the PATH."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")


def _py_spy_dump(program: str, pid: int) -> tuple[str, str]:
    """Its stacks and, where there are none, why. Without stopping the process: one that is stopped stays so."""
    command = [program, "dump", "--nonblocking", "--pid", str(pid)]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=PY_SPY_SECONDS, stdin=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired:
        return "", f"no answer within {PY_SPY_SECONDS:g} s"
    except OSError as error:
        return "", error.strerror or "it did not start"
    if done.returncode:
        lines = done.stderr.decode(errors="replace").split("\n")
        return "", lines[0][:200].strip() or f"it ended with code {done.returncode}"
    lines = done.stdout[:MAX_TEXT_BYTES].decode(errors="replace").splitlines()
    # Its head line is the command line, which may hold keys.
    return "\n".join(line for line in lines if not line.startswith("Process ")).strip() + "\n", ""


def _result(title: str, pid: int, texts: dict[int, str], outside: dict[int, tuple[str, str]]) -> ProcessStacks:
    if text := texts.get(pid):
        return ProcessStacks(title, pid, FAULTHANDLER, text, "")
    text, says = outside[pid]
    return ProcessStacks(title, pid, PY_SPY if text else "", text, says)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(MAX_TEXT_BYTES).decode(errors="replace")
    except OSError:
        return ""

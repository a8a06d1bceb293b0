"""ProcessStacks: the Python stacks of a run's processes, by their own answer, else from outside, or why not."""

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from vllm_obs.telemetry.ring import RingError
from vllm_obs.telemetry.ring_reader import RingReader
from vllm_obs.telemetry.stack_answer import MAX_TEXT_BYTES
from vllm_obs.telemetry.stack_ask import StackQuestion

ANSWER_SECONDS = 1.0
PATIENCE = 3
"""A process that runs, and only is slow, is waited for so many times as long."""
PY_SPY_SECONDS = 3.0
SETTLE_SECONDS = 0.1
"""A text that has not grown for so long is whole: on cores that are busy its writer may pause in the middle."""
POLL_SECONDS = 0.02
MAX_PROCESSES = 64
MAX_PY_SPY = 4
"""So many processes at most are read from outside at a time: each costs a second of a core."""

TURN_SECONDS = 10.0

IN_PROCESS, FAULTHANDLER, PY_SPY = "in-process", "faulthandler", "py-spy"
STUCK = "It holds the interpreter's lock and runs no Python code; its stacks were taken by a signal."
_TURN = threading.Lock()
"""Two that take the stacks of one process at once would each cut off the other's text."""


class ProcessStacks(NamedTuple):
    """The stacks of one process: `how` they were taken (empty if they were not), and what was not to be had."""

    title: str
    pid: int
    how: str
    text: str
    says: str


def take_stacks(run_dir: Path, timeout_seconds: float = ANSWER_SECONDS) -> dict[str, str]:
    """By the title of each live process of the run its stacks, or why there are none. Blocks; see `stacks_of`."""
    taken = stacks_of(run_dir, timeout_seconds=timeout_seconds)
    return {stacks.title: stacks.text or stacks.says for stacks in taken}


def stacks_of(
    run_dir: Path, pids: Collection[int] | None = None, timeout_seconds: float = ANSWER_SECONDS
) -> list[ProcessStacks]:
    """The stacks of these processes of the run, or of all that live, by title.

    Blocks for `timeout_seconds` while they answer (PATIENCE times that for those that run and are slow, once more
    where one is stuck), and a few seconds more where py-spy has to be asked.
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
    taken: dict[int, ProcessStacks] = {}
    refused: dict[int, str] = {}
    asked: list[StackQuestion] = []
    for title, pid in found:
        question = StackQuestion(run_dir, title, pid)
        if why := question.ask():
            refused[pid] = why
        else:
            asked.append(question)
    stuck = _await_answers(asked, taken, timeout_seconds)
    signalled: list[StackQuestion] = []
    for question in stuck:
        if why := question.send_signal():
            refused[question.pid] = why
        else:
            signalled.append(question)
    _await_dumps(signalled, taken, timeout_seconds)
    silent = [pid for _, pid in found if pid not in taken and pid not in refused]
    outside = _from_outside({**refused, **dict.fromkeys(silent, "it did not answer in time")})
    return [taken.get(pid) or _seen(title, pid, outside[pid]) for title, pid in found]


def live_processes(run_dir: Path) -> list[tuple[str, int]]:
    """(title, pid) of each process of this host whose ring is open for writing, MAX_PROCESSES at most."""
    found: set[tuple[str, int]] = set()
    for path in sorted(run_dir.glob("*.ring"))[: 4 * MAX_PROCESSES]:
        with contextlib.suppress(RingError, OSError), RingReader(path) as ring:
            header = ring.header()
            # The title names a file of the run directory, and nothing above it.
            is_ours = "/" not in header.role and not header.host
            if is_ours and ring.is_writer_alive():
                found.add((header.role, header.pid))
    return sorted(found)[:MAX_PROCESSES]


def _await_answers(
    asked: Collection[StackQuestion], taken: dict[int, ProcessStacks], timeout_seconds: float
) -> list[StackQuestion]:
    """Put the answers into `taken`; those that gave none in time because they are stuck.

    One that runs is never sent a signal, which could crash it, and is given PATIENCE times as long.
    """
    began = time.monotonic()
    open_questions = list(asked)
    stuck: list[StackQuestion] = []
    while open_questions and time.monotonic() - began < PATIENCE * timeout_seconds:
        time.sleep(POLL_SECONDS)
        is_late = time.monotonic() - began >= timeout_seconds
        for question in list(open_questions):
            if text := question.answer():
                taken[question.pid] = ProcessStacks(question.title, question.pid, IN_PROCESS, text, "")
            elif is_late and question.is_stuck():
                stuck.append(question)
            else:
                continue
            open_questions.remove(question)
    return stuck


def _await_dumps(
    signalled: Collection[StackQuestion], taken: dict[int, ProcessStacks], timeout_seconds: float
) -> None:
    """Put what a signal has written into `taken` when all of it is whole, or the time is over."""
    deadline = time.monotonic() + timeout_seconds
    sizes: dict[int, tuple[int, float]] = {}
    while time.monotonic() < deadline:
        now = time.monotonic()
        for each in signalled:
            size = _size(each.path)
            if sizes.get(each.pid, (0, now))[0] != size:
                sizes[each.pid] = (size, now)
        settled = [pid for pid, (size, since) in sizes.items() if size and now - since >= SETTLE_SECONDS]
        if len(settled) == len(signalled):
            break
        time.sleep(POLL_SECONDS)
    for each in signalled:
        if text := each.dump():
            taken[each.pid] = ProcessStacks(each.title, each.pid, FAULTHANDLER, text, STUCK)


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


def _seen(title: str, pid: int, outside: tuple[str, str]) -> ProcessStacks:
    text, says = outside
    return ProcessStacks(title, pid, PY_SPY if text else "", text, says)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0

"""Culprit: which process of an engine holds it up, and what that process is doing, in words."""

from collections.abc import Callable
from typing import NamedTuple

from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.watchdog_rule import EngineLook, ProcessLook, Track, Work

NS = 1e9
StateOf = Callable[[int], str]
"""A process's state as the kernel tells it (ProcessReader.state_of)."""

_IN_WORKERS = (Activity.EXECUTING, Activity.SAMPLING)
_DOING = {
    Activity.RECEIVING: "taking messages in",
    Activity.SCHEDULING: "planning step {step}",
    Activity.EXECUTING: "in the forward pass of step {step}",
    Activity.SAMPLING: "sampling in step {step}",
    Activity.UPDATING: "applying the answer of step {step}",
    Activity.SENDING: "handing out the results of step {step}",
    Activity.WAITING: "waiting for messages",
    Activity.SERVING: "serving",
    Activity.BROKEN: "serving",
}
_KERNEL_WORDS = {
    "T": "is stopped by a signal",
    "t": "is stopped by a debugger",
    "D": "waits in the kernel (disk or driver) and cannot be interrupted",
    "Z": "has ended",
    "X": "has ended",
}
"""States in which a process cannot go on by itself, worst first in this order."""


class Culprit(NamedTuple):
    """The process that holds an engine up, the kernel's letter for it, and what it does: a sentence's end."""

    process: ProcessLook
    process_state: str
    does: str


def culprit_of(look: EngineLook, track: Track, work: Work, state_of: StateOf) -> Culprit:
    """The one process of a stalled engine to look at first.

    One that the kernel holds comes before all others, the core before its workers; then a worker that is behind in
    the step the core waits for; and else the core itself.
    """
    states = {process: _state(process, state_of) for process in (look.core, *look.workers)}
    for letter, words in _KERNEL_WORDS.items():
        for process in (look.core, *look.workers):
            if states[process] == letter:
                return Culprit(process, letter, f"{words}, {_was_doing(process)}")
    if look.core.activity in _IN_WORKERS and look.workers:
        worker, does = _behind(look)
        return Culprit(worker, states[worker], does)
    return Culprit(look.core, states[look.core], _core_does(look, track, work))


def server_culprit(look: ProcessLook, state_of: StateOf) -> Culprit:
    """An API server or a launcher whose event loop stands still."""
    letter = _state(look, state_of)
    words = _KERNEL_WORDS.get(letter, "is held up in one piece of work")
    return Culprit(look, letter, f"{words}, and answers nobody")


def says(who: str, culprit: Culprit) -> str:
    """One sentence: what does not move, who holds it up, and what that process does."""
    process = culprit.process
    rank = f"rank {process.rank}, " if process.rank >= 0 else ""
    where = f" on {process.host}" if process.host else ""
    return f"{who}: {process.role} ({rank}pid {process.pid}{where}) {culprit.does}."


def work_in_words(num_running: int, num_waiting: int, num_untaken: int) -> str:
    """What an engine has to do."""
    counts = f"{num_running} running and {num_waiting} waiting"
    return counts + (f", and {num_untaken} that it has not taken" if num_untaken else "")


def _state(process: ProcessLook, state_of: StateOf) -> str:
    """Empty where no kernel that can be asked knows."""
    return "" if process.host else state_of(process.pid)


def _behind(look: EngineLook) -> tuple[ProcessLook, str]:
    """The worker that a step waits for: not begun, begun and not ended, or ended without being heard.

    A stage that is behind holds up those after it, which wait for what it computes: the first of them comes first.
    """
    step = look.core.step
    late = [worker for worker in look.workers if worker.step < step]
    if late:
        worker = min(late, key=lambda worker: (worker.stage, worker.step, worker.progress))
        return worker, f"has not begun step {step}, {_is_doing(worker)}"
    at_work = [worker for worker in look.workers if worker.activity is not Activity.WAITING]
    if at_work:
        worker = min(at_work, key=lambda worker: (worker.stage, worker.progress))
        return worker, f"does not get on, {_is_doing(worker)}"
    return look.core, f"waits for the answer of step {step}, and all its workers wait for it"


def _core_does(look: EngineLook, track: Track, work: Work) -> str:
    core = look.core
    if core.activity is Activity.WAITING:
        if work.submitted_at > core.heartbeat_at:
            return "does not take what was sent to it, waiting for messages"
        return "waits for messages though it has sequences to run"
    if core.heartbeat_at > track.moved_at:
        return f"takes messages and runs nothing, {_is_doing(core)}"
    return f"does not get on, {_is_doing(core)}"


def _was_doing(process: ProcessLook) -> str:
    return f"last seen {_words(process)}"


def _is_doing(process: ProcessLook) -> str:
    return f"now {_words(process)}"


def _words(process: ProcessLook) -> str:
    return _DOING.get(process.activity, process.activity.label).format(step=process.step)

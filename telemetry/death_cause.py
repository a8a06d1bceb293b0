"""DeathCause: why a process ended, in a word from a closed set, with what that was told by."""

import re
import signal
from pathlib import Path
from typing import Literal, NamedTuple

from vllm_obs.telemetry.death_traces import Trace, crash_of, exception_of, last_words_of, without_quotes
from vllm_obs.telemetry.death_watch import End

Cause = Literal["killed", "out_of_memory", "crashed", "exception", "exit", "stalled", "step_failed"]
CAUSES: tuple[Cause, ...] = (
    "killed",
    "out_of_memory",
    "crashed",
    "exception",
    "exit",
    "stalled",
    "step_failed",
)
"""killed: by a signal. out_of_memory: by the kernel for lack of memory, or because it was given none.
crashed: by a fault of its own. exception: it gave up. exit: it left with a code. stalled: it lives and does not
move. step_failed: an exception in a step failed its batch, and the engine goes on."""

EXIT_GAVE_UP = 70
EXIT_OUT_OF_MEMORY = 71
_CRASH_SIGNALS = frozenset(
    {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSYS, signal.SIGTRAP}
)
_CRASH_WORDS = {
    "Segmentation fault": signal.SIGSEGV,
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
    "Floating point exception": signal.SIGFPE,
    "Floating-point exception": signal.SIGFPE,
    "Illegal instruction": signal.SIGILL,
}
_NO_MEMORY = re.compile(
    r"MemoryError|OutOfMemory|out of memory|(can't|cannot) allocate memory|could not create a primitive",
    re.IGNORECASE,
)
"""The last is oneDNN's, whose primitives were all made once at the warm-up: later only memory can be wanting."""


class DeathCause(NamedTuple):
    """`signal_name` is empty unless a signal ended it; `trace` is where, as far as that is known.

    `is_inferred` says that nobody saw how it ended: it left no trace, and nothing but SIGKILL leaves none.
    `last_words` are an engine's or a worker's own line about its end; `crash_stacks` what faulthandler wrote.
    """

    cause: Cause
    signal_name: str = ""
    is_inferred: bool = False
    trace: Trace | None = None
    last_words: str = ""
    crash_stacks: str = ""


def cause_of_end(end: End, run_dir: Path, started_wall_ns: int = 0) -> DeathCause:
    """Why this process ended, from its exit code, its control group, and what it left in the run directory."""
    crash = crash_of(run_dir, end.role, started_wall_ns)
    code = end.exit_code
    if code is None and crash is not None:
        return DeathCause("crashed", _signal_of(crash[0]), trace=crash[0], crash_stacks=crash[1])
    if code is None or code == -signal.SIGKILL:
        cause: Cause = "out_of_memory" if end.num_oom_kills else "killed"
        return DeathCause(cause, "SIGKILL", is_inferred=code is None)
    if code < 0:
        trace, stacks = crash or (None, "")
        cause = "crashed" if -code in _CRASH_SIGNALS else "killed"
        return DeathCause(cause, signal_name(-code), trace=trace, crash_stacks=stacks)
    return _gave_up(end, run_dir, code)


def is_lack_of_memory(words: str) -> bool:
    """Whether an error's words say that there was no memory to be had."""
    return bool(_NO_MEMORY.search(words))


def signal_name(number: int) -> str:
    """SIGKILL for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _gave_up(end: End, run_dir: Path, code: int) -> DeathCause:
    trace = exception_of(run_dir, end.role) if code in (EXIT_GAVE_UP, EXIT_OUT_OF_MEMORY) else None
    words = "" if end.role.startswith("APIServer") else last_words_of(run_dir, end.role)
    if code == EXIT_OUT_OF_MEMORY or (code == EXIT_GAVE_UP and is_lack_of_memory(words)):
        return DeathCause("out_of_memory", trace=trace, last_words=without_quotes(words))
    cause: Cause = "exception" if code == EXIT_GAVE_UP else "exit"
    return DeathCause(cause, trace=trace, last_words=without_quotes(words))


def _signal_of(crash: Trace) -> str:
    found = next((number for words, number in _CRASH_WORDS.items() if crash.kind.startswith(words)), None)
    return found.name if found is not None else ""

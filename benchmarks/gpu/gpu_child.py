"""A command in a process group of its own, which is ended at a deadline, whatever it has started."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

STOP_SECONDS = 15.0
"""A server that is told to stop has so long."""
TAIL_CHARS = 2000


class Ended(NamedTuple):
    """What it wrote on standard output, the end of what it wrote on standard error, and how it ended."""

    output: str
    errors: str
    exit_code: int
    is_cut_short: bool


def run_until(command: Sequence[str], seconds: float, environment: dict[str, str] | None = None) -> Ended:
    """Run it for so long at most."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **(environment or {})},
    ) as process:
        output, errors, is_cut_short = _collected(process, seconds)
        _signal_all(process.pid, signal.SIGKILL)  # whoever of the group is left
    return Ended(output, errors[-TAIL_CHARS:], process.returncode, is_cut_short)


def _collected(process: "subprocess.Popen[str]", seconds: float) -> tuple[str, str, bool]:
    try:
        return *process.communicate(timeout=seconds), False
    except subprocess.TimeoutExpired:
        _signal_all(process.pid, signal.SIGTERM)
    try:
        return *process.communicate(timeout=STOP_SECONDS), True
    except subprocess.TimeoutExpired:
        _signal_all(process.pid, signal.SIGKILL)
        return *process.communicate(), True


def _signal_all(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)

"""A command in a process group of its own, which is ended at a deadline, whatever it has started."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parents[2] / "src"
STOP_SECONDS = 15.0
"""A server that is told to stop has so long; it is a part of the time that the command has."""
END_SECONDS = 2.0
"""For what comes after the last signal."""
TAIL_CHARS = 2000
_NO_WORD = "not a word was said"


class Ended(NamedTuple):
    """What it wrote on standard output, the end of what it wrote on standard error, and how it ended."""

    output: str
    errors: str
    exit_code: int
    is_cut_short: bool

    @property
    def last_word(self) -> str:
        """The last line of its errors."""
        return (self.errors.strip().splitlines() or [_NO_WORD])[-1]


def run_until(command: Sequence[str], seconds: float, environment: dict[str, str] | None = None) -> Ended:
    """Run it for so long at most, its end included."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": _with_source(), **(environment or {})},
    ) as process:
        output, errors, is_cut_short = _collected(process, seconds)
        _signal_all(process.pid, signal.SIGKILL)  # whoever of the group is left
    return Ended(output, errors[-TAIL_CHARS:], process.returncode, is_cut_short)


def _with_source() -> str:
    """Where modules are looked for; in this checkout too, so that nothing need be installed."""
    return os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), str(SOURCE)]))


def _collected(process: "subprocess.Popen[str]", seconds: float) -> tuple[str, str, bool]:
    stop_seconds, end_seconds = min(STOP_SECONDS, seconds / 4), min(END_SECONDS, seconds / 10)
    try:
        return *process.communicate(timeout=max(0.0, seconds - stop_seconds - end_seconds)), False
    except subprocess.TimeoutExpired:
        _signal_all(process.pid, signal.SIGTERM)
    try:
        return *process.communicate(timeout=stop_seconds), True
    except subprocess.TimeoutExpired:
        _signal_all(process.pid, signal.SIGKILL)
    try:
        return *process.communicate(timeout=end_seconds), True
    except subprocess.TimeoutExpired as error:  # somebody outside of the group holds its output open
        return _text(error.stdout), _text(error.stderr), True


def _text(written: bytes | str | None) -> str:
    return written.decode(errors="replace") if isinstance(written, bytes) else written or ""


def _signal_all(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)

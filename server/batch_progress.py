"""What people see on standard error while a batch runs: one line, written again or at times."""

import asyncio
import sys
import time
from typing import TextIO

from vllm_obs.server.batch_job import BatchJob

TERMINAL_SECONDS = 0.5
LOG_SECONDS = 10.0


class BatchProgress:
    """Tells how far a batch is: in place on a terminal, else a line every ten seconds."""

    def __init__(self, job: BatchJob, file: TextIO | None = None) -> None:
        self._job = job
        self._file = file or sys.stderr
        self._is_terminal = self._file.isatty()
        self._started_at = time.monotonic_ns()

    async def run(self) -> None:
        """Tell until cancelled."""
        seconds = TERMINAL_SECONDS if self._is_terminal else LOG_SECONDS
        while True:
            await asyncio.sleep(seconds)
            end = "\x1b[K\r" if self._is_terminal else "\n"
            self._write(f"{self.words()}{end}")

    def summary(self, num_cut_off: int) -> None:
        """Tell how it ended."""
        cut_off = f", {num_cut_off} cut off" if num_cut_off else ""
        clear = "\x1b[K" if self._is_terminal else ""
        self._write(f"{clear}{self._counts()}{cut_off}, in {self._seconds():.1f} s\n")

    def words(self) -> str:
        """How far it is now."""
        job, lines = self._job, self._job.lines
        share = f", {100 * lines.num_bytes_read // lines.num_bytes} % read" if lines.num_bytes else ""
        rate = job.num_answered / max(self._seconds(), 1e-9)
        return f"{self._counts()}, {job.num_under_way} under way, {rate:.1f} a second{share}"

    def _counts(self) -> str:
        job = self._job
        return f"{job.num_answered} lines answered, {job.num_failed} of them with an error"

    def _seconds(self) -> float:
        return (time.monotonic_ns() - self._started_at) / 1e9

    def _write(self, text: str) -> None:
        print(text, end="", file=self._file, flush=True)

"""ProfileWriter: the thread that turns captured steps into a trace and a table, in slices steps do not feel."""

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from vllm_obs.engine.worker.profiler_nest import nested
from vllm_obs.engine.worker.profiler_step import STEP, CapturedStep, device_ranges, host_ranges
from vllm_obs.engine.worker.profiler_table import OperatorTable
from vllm_obs.engine.worker.profiler_trace import TraceFile, TraceSite

LEAST_PRIORITY = 19
SLICE_SECONDS = 0.0003
PAUSE_SECONDS = 0.003
"""The interpreter's lock is held for about one slice, then left to the steps."""
RANGES_A_LOOK = 16

TRACE_SUFFIX = ".trace.json"
GZIP_SUFFIX = ".gz"
TABLE_SUFFIX = ".operators.json"


class Captured(NamedTuple):
    """All that is to be written: the steps, and facts that go into both files."""

    steps: list[CapturedStep]
    facts: dict[str, Any]


class ProfileWriter:
    """Writes one rank's files, then calls `on_written(file names, error)` from its thread."""

    def __init__(self, directory: Path, site: TraceSite, on_written: Callable[[list[str], str], None]) -> None:
        self._directory = directory
        self._site = site
        self._on_written = on_written
        self._slice_began = 0.0
        self._num_ranges = 0

    def start(self, captured: Captured) -> None:
        """Begin to write."""
        thread = threading.Thread(target=self._run, args=(captured,), name="profile writer", daemon=True)
        thread.start()

    def _run(self, captured: Captured) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LEAST_PRIORITY)
        try:
            files, error = self._write(captured), ""
        except Exception as failure:
            files, error = [], f"{type(failure).__name__}: {getattr(failure, 'strerror', None) or failure}"
        self._on_written(files, error)

    def _write(self, captured: Captured) -> list[str]:
        suffix = TRACE_SUFFIX if "uncompressed" in captured.facts["options"] else TRACE_SUFFIX + GZIP_SUFFIX
        names = [self._site.process + suffix, self._site.process + TABLE_SUFFIX]
        trace, table = TraceFile(self._directory / names[0], self._site), OperatorTable()
        self._slice_began = time.monotonic()
        try:
            while captured.steps:  # what is written need not be held any longer
                self._write_step(captured.steps.pop(0), trace, table)
        except BaseException:
            trace.discard()
            raise
        content = captured.facts | table.content()
        trace.close(captured.facts)
        part = self._directory / (names[1] + ".part")
        part.write_text(json.dumps(content, indent=1))
        part.replace(self._directory / names[1])
        return names

    def _write_step(self, step: CapturedStep, trace: TraceFile, table: OperatorTable) -> None:
        table.add_step(step)
        ranges = host_ranges(step)
        self._breathe()
        for one in nested(ranges):
            table.add(one)
            if one.range.kind == STEP:
                trace.add_step(step, one.range)
            else:
                trace.add(one.range)
            self._count()
        for track, work in device_ranges(step):
            table.add_device(track, work)
            trace.add_device(track, work)
            self._count()

    def _count(self) -> None:
        self._num_ranges += 1
        if self._num_ranges % RANGES_A_LOOK == 0:
            self._breathe()

    def _breathe(self) -> None:
        """Sleep a little when the slice is over."""
        if time.monotonic() - self._slice_began > SLICE_SECONDS:
            time.sleep(PAUSE_SECONDS)
            self._slice_began = time.monotonic()

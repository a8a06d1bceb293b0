"""ProcessMetrics: CPU, memory, files and threads of the root process and of every process of the run."""

import platform
from dataclasses import dataclass
from typing import Any

from vllm_obs.telemetry.catalogue_process import GC_GENERATIONS
from vllm_obs.telemetry.memory_room import MemoryRoomReader
from vllm_obs.telemetry.metric_store import MetricStore
from vllm_obs.telemetry.process_reader import ProcessNumbers, ProcessReader
from vllm_obs.telemetry.process_roles import LAUNCHER
from vllm_obs.telemetry.records import GarbageSampled
from vllm_obs.telemetry.view import Source

MAX_PROCESSES = 1024

_GAUGES = {
    "vllm_obs_process_resident_memory_bytes": "resident_bytes",
    "vllm_obs_process_open_fds": "num_fds",
    "vllm_obs_process_threads": "num_threads",
}
_ROOT_GAUGES = {
    "process_virtual_memory_bytes": "virtual_bytes",
    "process_resident_memory_bytes": "resident_bytes",
    "process_open_fds": "num_fds",
}
_GC_COUNTERS = tuple(
    f"python_gc_{name}_total" for name in ("collections", "objects_collected", "objects_uncollectable")
)


@dataclass(slots=True)
class Process:
    """A process of the run; `counted_seconds` of its CPU time are in the counter already."""

    role: str
    rank: str
    pid: int
    started_ticks: int = 0
    counted_seconds: float = 0.0


class ProcessMetrics:
    """Reads them at a scrape. CPU time of a process that is replaced stays in its role's counter."""

    def __init__(self, store: MetricStore, root_pid: int, reader: ProcessReader, memory: MemoryRoomReader) -> None:
        self._store = store
        self._root_pid = root_pid
        self._reader = reader
        self._memory = memory
        self._processes: dict[int, Process] = {}
        self._garbage: tuple[int, list[list[int]]] = (0, [])
        """The process whose collector is shown, and what it said last."""
        store.value("python_info", *_python_labels()).set(1)

    def seen(self, role: str, pid: int) -> None:
        """A process of the run recorded something."""
        known = self._processes.get(pid)
        kind, rank = split_role(role)
        if known is None or (known.role, known.rank) != (kind, rank):
            self._processes[pid] = Process(kind, rank, pid)
            if len(self._processes) > MAX_PROCESSES:
                del self._processes[next(iter(self._processes))]

    def garbage(self, source: Source, record: GarbageSampled) -> None:
        """What a garbage collector has done; shown is the root's, or for a launcher the first API server's."""
        root = self._processes.get(self._root_pid)
        has_launcher = root is not None and root.role == LAUNCHER
        if source.pid != self._root_pid and not (has_launcher and record.client_index == 0):
            return
        columns = [record.num_collections, record.num_collected, record.num_uncollectable]
        pid, before = self._garbage
        if pid != source.pid:  # another has taken its place, and counts from zero
            before = [[0] * len(column) for column in columns]
        self._garbage = source.pid, columns
        for name, counts, counted in zip(_GC_COUNTERS, columns, before, strict=True):
            for generation, count, num_before in zip(GC_GENERATIONS, counts, counted, strict=False):
                self._store.value(name, generation).add(max(0, count - num_before))

    def refresh(self) -> None:
        """Read all of them; in a replay, where there is no root, the pids are others' by now."""
        if not self._root_pid:
            return
        self._refresh_root()
        found = {pid: self._reader.read(pid) for pid in self._processes}
        live: list[tuple[Process, ProcessNumbers]] = []
        for process in list(self._processes.values()):
            numbers = found[process.pid]
            if numbers is None and not self._reader.is_gone(process.pid):
                continue  # its numbers stay as they were
            if numbers is None or process.started_ticks not in (0, numbers.started_ticks):
                del self._processes[process.pid]
                self._show(process, None)
            else:
                live.append((process, numbers))
        # After the dead ones: a process may have taken the place of one of them.
        for process, numbers in live:
            self._count(process, numbers)

    def state(self) -> Any:
        """In plain values."""
        processes = [
            [each.role, each.rank, each.pid, each.started_ticks, each.counted_seconds]
            for each in self._processes.values()
        ]
        return [processes, *self._garbage]

    def restore(self, state: Any) -> None:
        """Go on from a `state`. TypeError or ValueError if it is none."""
        processes, pid, garbage = state
        self._processes = {row[2]: Process(*row) for row in processes}
        self._garbage = pid, garbage

    def _count(self, process: Process, numbers: ProcessNumbers) -> None:
        process.started_ticks = numbers.started_ticks
        counter = self._store.value("vllm_obs_process_cpu_seconds_total", process.role, process.rank)
        counter.add(max(0.0, numbers.cpu_seconds - process.counted_seconds))
        process.counted_seconds = numbers.cpu_seconds
        self._show(process, numbers)

    def _show(self, process: Process, numbers: ProcessNumbers | None) -> None:
        for name, field in _GAUGES.items():
            level = getattr(numbers, field) if numbers is not None else 0
            self._store.value(name, process.role, process.rank).set(level)

    def _refresh_root(self) -> None:
        numbers = self._reader.read(self._root_pid)
        if numbers is None:
            return
        for name, field in _ROOT_GAUGES.items():
            self._store.value(name).set(getattr(numbers, field))
        self._store.value("process_cpu_seconds_total").raise_to(numbers.cpu_seconds)
        self._store.value("process_max_fds").set(self._reader.max_fds(self._root_pid))
        room = self._memory.read(self._root_pid)
        self._store.value("vllm_obs_memory_limit_bytes").set(room.limit_bytes)
        self._store.value("vllm_obs_memory_used_bytes").set(room.used_bytes)
        started_at = self._store.value("process_start_time_seconds")
        if not started_at.number:
            started_at.set(self._reader.started_at(numbers))


def split_role(role: str) -> tuple[str, str]:
    """Worker_TP0 is rank TP0 of the workers, and so on."""
    kind, _, rank = role.partition("_")
    return kind, rank


def _python_labels() -> tuple[str, ...]:
    major, minor, patchlevel = platform.python_version_tuple()
    return platform.python_implementation(), major, minor, patchlevel, platform.python_version()

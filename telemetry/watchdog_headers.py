"""RunHeaders: the ring headers of a run's live processes, kept open and looked at again and again."""

import contextlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from vllm_obs.telemetry.ring import RingError, RingFormatError
from vllm_obs.telemetry.ring_reader import RingReader
from vllm_obs.telemetry.watchdog_rule import EngineLook, ProcessLook

MAX_RINGS = 256
CORE, WORKER, API_SERVER = "EngineCore", "Worker", "APIServer"
_RANK = re.compile(r"_TP(\d{1,6})")
_ENGINE = re.compile(r"_DP(\d{1,6})")


class RunHeaders:
    """Looks at every `*.ring` of a run directory whose writer lives. A look takes some tens of microseconds."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._readers: dict[int, RingReader | None] = {}
        """By inode, since a dead process's ring gets another name; None for one that is of no use any more."""

    def look(self) -> list[ProcessLook]:
        """Every live process's header as it is now; none where the directory cannot be read."""
        self._discover()
        looks: list[ProcessLook] = []
        for inode, reader in self._readers.items():
            if reader is None:
                continue
            try:
                look = _look_of(reader)
            except OSError:  # whatever it was, the next look may succeed
                continue
            if look is not None:
                looks.append(look)
            else:
                reader.close()
                self._readers[inode] = None
        return looks

    def close(self) -> None:
        """Let go of every file."""
        for reader in self._readers.values():
            if reader is not None:
                reader.close()
        self._readers.clear()

    def _discover(self) -> None:
        present: dict[int, str] = {}
        with contextlib.suppress(OSError), os.scandir(self._run_dir) as entries:
            for entry in entries:
                if entry.name.endswith(".ring") and not entry.name.startswith(".") and len(present) < MAX_RINGS:
                    present[entry.inode()] = entry.name
        for inode in self._readers.keys() - present.keys():
            if (reader := self._readers.pop(inode)) is not None:
                reader.close()
        for inode in present.keys() - self._readers.keys():
            with contextlib.suppress(RingError, OSError):  # it is tried again in the next look
                self._readers[inode] = _open(self._run_dir / present[inode])


def engines_of(looks: Iterable[ProcessLook]) -> list[EngineLook]:
    """The engines among these processes, by label. Workers whose core is not there are left out."""
    processes = list(looks)
    engines: list[EngineLook] = []
    for core in processes:
        if core.role.startswith(CORE):
            engine = engine_label(core.role)
            workers = [look for look in processes if look.role.startswith(WORKER)]
            own = [worker for worker in workers if engine_label(worker.role) == engine]
            engines.append(EngineLook(engine, core, tuple(sorted(own, key=lambda worker: worker.rank))))
    return sorted(engines)


def engine_label(role: str) -> str:
    """The engine that a core or a worker belongs to; "0" where its role names none."""
    found = _ENGINE.search(role)
    return found[1] if found else "0"


def _open(path: Path) -> RingReader | None:
    """None for a file that is no ring. RingError or OSError where it cannot be opened now."""
    try:
        return RingReader(path)
    except RingFormatError:
        return None


def _look_of(reader: RingReader) -> ProcessLook | None:
    """None once its writer has ended, or the file is damaged. Raises OSError."""
    try:
        header = reader.header()
        if header.closed_at or not reader.is_writer_alive():
            return None
    except RingError:
        return None
    found = _RANK.search(header.role) if header.role.startswith(WORKER) else None
    rank = int(found[1]) if found else 0 if header.role.startswith(WORKER) else -1
    return ProcessLook(
        header.role,
        header.pid,
        rank,
        header.generation,
        header.heartbeat_at,
        header.step,
        header.progress,
        header.activity,
        header.activity_at,
    )

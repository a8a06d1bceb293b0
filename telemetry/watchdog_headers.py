"""RunHeaders: the ring headers of a run's live processes, kept open and looked at again and again."""

import contextlib
import re
from collections.abc import Iterable
from pathlib import Path

from vllm_obs.telemetry.open_rings import OpenRings
from vllm_obs.telemetry.ring import RingError
from vllm_obs.telemetry.ring_reader import RingReader
from vllm_obs.telemetry.watchdog_rule import EngineLook, ProcessLook

CORE, WORKER, API_SERVER = "EngineCore", "Worker", "APIServer"
_RANK = re.compile(r"_TP(\d{1,6})")
_ENGINE = re.compile(r"_DP(\d{1,6})")


class RunHeaders:
    """Looks at every `*.ring` of a run directory whose writer lives. A look takes some tens of microseconds."""

    def __init__(self, run_dir: Path) -> None:
        self._rings = OpenRings(run_dir)

    def look(self) -> list[ProcessLook]:
        """Every live process's header as it is now; none where the directory cannot be read."""
        looks: list[ProcessLook] = []
        for reader in self._rings.look():
            with contextlib.suppress(OSError):  # whatever it was, the next look may succeed
                look = _look_of(reader)
                if look is not None:
                    looks.append(look)
                else:
                    self._rings.done(reader)
        return looks

    def close(self) -> None:
        """Let go of every file."""
        self._rings.close()


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

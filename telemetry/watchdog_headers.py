"""RunHeaders: the ring headers of a run's live processes, kept open and looked at again and again."""

import contextlib
from collections.abc import Iterable
from pathlib import Path

from vllm_obs.telemetry.open_rings import OpenRings
from vllm_obs.telemetry.process_roles import (
    CORE,
    WORKER,
    engine_of_role,
    parse_role,
    rank_of,
)
from vllm_obs.telemetry.ring import RingError
from vllm_obs.telemetry.ring_reader import RingReader
from vllm_obs.telemetry.watchdog_rule import EngineLook, ProcessLook


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
    workers = [look for look in processes if look.role.startswith(WORKER)]
    engines: list[EngineLook] = []
    for core in processes:
        if core.role.startswith(CORE):
            engine = engine_of_role(core.role)
            own = [worker for worker in workers if engine_of_role(worker.role) == engine]
            roles = [worker.role for worker in own]
            ranked = [worker._replace(rank=rank_of(worker.role, roles)) for worker in own]
            engines.append(EngineLook(engine, core, tuple(sorted(ranked, key=lambda worker: worker.rank))))
    return sorted(engines)


def _look_of(reader: RingReader) -> ProcessLook | None:
    """None once its writer has ended, or the file is damaged. Raises OSError."""
    try:
        header = reader.header()
        if header.closed_at or not reader.is_writer_alive():
            return None
    except RingError:
        return None
    return ProcessLook(
        header.role,
        header.pid,
        rank_of(header.role),
        header.generation,
        header.heartbeat_at,
        header.step,
        header.progress,
        header.activity,
        header.activity_at,
        parse_role(header.role).stage,
        header.host,
    )

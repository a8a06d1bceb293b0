"""DeathWatch: sees which processes of a run ended without closing their rings, and what is known of their ends."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from vllm_obs.telemetry.death_status import ProcessHandle
from vllm_obs.telemetry.memory_limits import MemoryLimits, MemoryReader, num_oom_kills
from vllm_obs.telemetry.open_rings import OpenRings
from vllm_obs.telemetry.ring import RingError
from vllm_obs.telemetry.ring_header import RingHeader
from vllm_obs.telemetry.ring_reader import RingReader

MAX_WATCHED = 256
MEMORY_NS = 5_000_000_000
"""How old what is known of a process's memory may be; a change of its control group is seen at the next look."""


class End(NamedTuple):
    """The end of a process. `exit_code` is negative for a signal, None where nobody told it.

    `ended_at` is when that was seen (monotonic ns). `is_recorded` says that its owner recorded it, `was_told` that
    the owner had ordered it. `memory` is its last known; `num_oom_kills` processes of its control group were
    killed for lack of memory while it was watched.
    """

    role: str
    pid: int
    exit_code: int | None
    ended_at: int
    is_recorded: bool = False
    was_told: bool = False
    memory: MemoryLimits | None = None
    num_oom_kills: int = 0

    @property
    def key(self) -> tuple[str, int]:
        """What names the process within a run."""
        return self.role, self.pid


class SeenRing(NamedTuple):
    """A ring's header, and whether its writer has it open."""

    header: RingHeader
    is_alive: bool


@dataclass
class _Watched:
    header: RingHeader
    handle: ProcessHandle | None
    memory: MemoryLimits | None
    oom_baseline: tuple[str, int] = ("", 0)
    membership: str = ""
    read_at: int = 0


class DeathWatch:
    """Looks at a run directory's rings about once a second."""

    def __init__(self, run_dir: Path, memory: MemoryReader | None = None) -> None:
        self._rings = OpenRings(run_dir)
        self._memory = memory or MemoryReader()
        self._watched: dict[int, _Watched] = {}
        self._told: dict[int, None] = {}
        """Generations whose end has been told, or is none to tell of."""

    def look(self, now: int) -> list[End]:
        """The ends that were not seen before, of processes that did not close their rings."""
        ends: list[End] = []
        for header, is_alive in self._look_at_rings():
            if header.generation in self._told:
                continue
            if is_alive:
                self._meet(header, now)
            else:
                self._tell(header.generation)
                watched = self._watched.pop(header.generation, None)
                # A mirror ends with the connection; how its process ended its owner tells.
                if not header.closed_at and not header.host:
                    ends.append(self._end_of(header, watched, now))
                if watched is not None and watched.handle is not None:
                    watched.handle.close()
        return ends

    def memory_of(self, pid: int) -> MemoryLimits | None:
        """What was last seen of a process's memory."""
        return next((watched.memory for watched in self._watched.values() if watched.header.pid == pid), None)

    def await_end(self, role: str, timeout_seconds: float) -> None:
        """Wait until every process of that role that is watched has ended, so far as that can be seen."""
        for watched in self._watched.values():
            if watched.header.role.startswith(role) and watched.handle is not None:
                watched.handle.wait(timeout_seconds)

    def close(self) -> None:
        """Let go of every process."""
        for watched in self._watched.values():
            if watched.handle is not None:
                watched.handle.close()
        self._watched.clear()
        self._rings.close()

    def _look_at_rings(self) -> Iterator[SeenRing]:
        """What there is to see, for the last time of those whose writers have ended."""
        for reader in self._rings.look():
            with contextlib.suppress(RingError, OSError):
                seen = _seen(reader)
                if not seen.is_alive:
                    self._rings.done(reader)
                yield seen

    def _meet(self, header: RingHeader, now: int) -> None:
        watched = self._watched.get(header.generation)
        if watched is None:
            if len(self._watched) >= MAX_WATCHED:
                return
            handle = None if header.host else _handle(header.pid)
            watched = self._watched[header.generation] = _Watched(header, handle, None)
        if header.host:
            return  # the kernel here knows nothing of it
        membership = self._memory.membership(header.pid)
        if membership == watched.membership and now - watched.read_at < MEMORY_NS:
            return
        watched.membership, watched.read_at = membership, now
        memory = self._memory.read(header.pid)
        # A process that is ending has given its memory back before its files: what it had is what counts.
        if memory is not None and (memory.resident_bytes or watched.memory is None):
            watched.memory = memory
            if watched.oom_baseline[0] != memory.group:
                watched.oom_baseline = (memory.group, memory.num_oom_kills)

    def _end_of(self, header: RingHeader, watched: _Watched | None, now: int) -> End:
        end = End(header.role, header.pid, None, now)
        if watched is None:
            return end
        group, before = watched.oom_baseline
        num_killed = num_oom_kills(Path(group)) - before if group else 0
        code = watched.handle.exit_code() if watched.handle is not None else None
        return end._replace(exit_code=code, memory=watched.memory, num_oom_kills=max(0, num_killed))

    def _tell(self, generation: int) -> None:
        self._told[generation] = None
        if len(self._told) > MAX_WATCHED:
            del self._told[next(iter(self._told))]


def rings_of(run_dir: Path) -> Iterator[SeenRing]:
    """Every ring of a run directory; those that cannot be read are passed over."""
    for path in sorted(run_dir.glob("*.ring")):
        with contextlib.suppress(RingError, OSError), RingReader(path) as reader:
            yield _seen(reader)


def _seen(reader: RingReader) -> SeenRing:
    # Asked first: what a writer that is dead by now has written is all there will be.
    is_alive = reader.is_writer_alive()
    return SeenRing(reader.header(), is_alive)


def _handle(pid: int) -> ProcessHandle | None:
    try:
        return ProcessHandle(pid)
    except OSError:
        return None

"""OpenStalls: which of the stalls that were filed last, and the end of each in its incident."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from vllm_obs.telemetry.death_watch import rings_of
from vllm_obs.telemetry.incident_backlog import IncidentBacklog
from vllm_obs.telemetry.incident_mending import is_whole, keys_of
from vllm_obs.telemetry.incident_stall import StallEnd, lasts, settled
from vllm_obs.telemetry.records import StallEnded

MAX_STALLS = 64

Amended = list[tuple[dict[str, Any], bool]]
"""Documents in the past tense, each with whether its incident is written down."""


class OpenStalls:
    """Those in `documents`, which an earlier Observer filed, and those that `begin` tells of."""

    def __init__(self, run_dir: Path, backlog: IncidentBacklog, documents: Iterable[Mapping[str, Any]]) -> None:
        self._run_dir = run_dir
        self._backlog = backlog
        lasting = [each for each in documents if is_whole(each) and lasts(each)]
        self._names: dict[str, str] = {key: each["name"] for each in lasting for key in keys_of(each)}
        self._ended: dict[str, StallEnded] = {}
        """Stalls that were over before they were filed, which takes as long as their stacks do."""

    def begin(self, key: str, name: str) -> Amended:
        """The stall of that key was filed under this name; what to tell if it is over already."""
        self._names[key] = name
        if len(self._names) > MAX_STALLS:
            del self._names[next(iter(self._names))]
        ended = self._ended.pop(key, None)
        return self.end(ended) if ended is not None else []

    def end(self, record: StallEnded) -> Amended:
        """A stall is over."""
        key = f"stall {record.role} {record.pid} {record.stuck_at}"
        if key in self._names:
            how: StallEnd = "moved" if self._is_alive(record.role, record.pid) else "died"
            return self._settle(key, how, record.ended_at)
        self._ended[key] = record
        if len(self._ended) > MAX_STALLS:
            del self._ended[next(iter(self._ended))]
        return []

    def end_all(self, now: int) -> Amended:
        """The run is over, and with it whatever stood still."""
        return [amended for key in list(self._names) for amended in self._settle(key, "run_ended", now)]

    def _settle(self, key: str, how: StallEnd, ended_at: int) -> Amended:
        document = self._backlog.document(self._names.pop(key))
        if document is None or not lasts(document):
            return []
        document = settled(document, how, ended_at)
        return [(document, self._backlog.amend(document))]

    def _is_alive(self, role: str, pid: int) -> bool:
        rings = rings_of(self._run_dir)
        return any(is_alive for header, is_alive in rings if (header.role, header.pid) == (role, pid))

"""The incidents of all runs that are known on this machine, filed or put together from what a dead run left."""

import contextlib
from pathlib import Path
from typing import Any, NamedTuple

from vllm_obs.cli.live_run import is_alive, runs_newest_first
from vllm_obs.telemetry.incident_offline import tell_unfiled, unfiled_incident
from vllm_obs.telemetry.incident_reader import read_incident
from vllm_obs.telemetry.incident_shelf import IncidentShelf

LATEST = "latest"


class Known(NamedTuple):
    """One incident. `told` is all about it where no Observer wrote it down; else its folder has that."""

    run: Path
    name: str
    document: dict[str, Any]
    told: dict[str, Any] | None = None

    @property
    def wall_at(self) -> int:
        """When it happened (ns since 1970)."""
        return int(self.document["happened"]["wall_at"])

    def read(self) -> dict[str, Any] | None:
        """Everything about it; None if it is gone by now."""
        if self.told is not None:
            return self.told
        return read_incident(IncidentShelf(self.run), self.name)


def known_incidents(runs: list[Path] | None = None) -> list[Known]:
    """Those of these runs, or of all, newest first."""
    found = [known for run in (runs_newest_first() if runs is None else runs) for known in incidents_of(run)]
    return sorted(found, key=lambda known: known.wall_at, reverse=True)


def incidents_of(run: Path) -> list[Known]:
    """Those of one run, oldest first."""
    shelf = IncidentShelf(run)
    found = [Known(run, name, document) for name in shelf.names() if (document := _readable(shelf, name))]
    # What a damaged ring holds is no reason to show nothing.
    with contextlib.suppress(OSError, ValueError):
        unfiled = None if is_alive(run) else unfiled_incident(run)
        if unfiled is not None:
            told = tell_unfiled(unfiled)
            found.append(Known(run, told["incident"]["name"], told["incident"], told))
    return found


def _readable(shelf: IncidentShelf, name: str) -> dict[str, Any] | None:
    document = shelf.read(name)
    is_whole = document is not None and isinstance(document.get("happened"), dict) and "says" in document
    return document if is_whole else None

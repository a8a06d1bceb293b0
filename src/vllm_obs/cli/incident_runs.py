"""The incidents of all runs that are known on this machine, filed or put together from what a dead run left."""

import contextlib
from pathlib import Path
from typing import Any, NamedTuple

from vllm_obs.cli.live_run import is_alive, runs_newest_first
from vllm_obs.telemetry.incident_mending import mended, mended_content
from vllm_obs.telemetry.incident_offline import tell_unfiled, unfiled_incident, unwritten_incidents
from vllm_obs.telemetry.incident_reader import read_parts
from vllm_obs.telemetry.incident_shelf import FOLDER, IncidentShelf
from vllm_obs.telemetry.incident_stall import lasts, settled

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
        shelf = IncidentShelf(self.run)
        if not (shelf.path / self.name).is_dir():
            return None
        # Its document may be damaged, and the other files be whole.
        content = read_parts(shelf, self.name) | {"incident": shelf.read(self.name)}
        content = mended_content(content, self.name, self.run.name)
        return {**content, "incident": _as_it_is(content["incident"], self.run)}


def holds_run(path: Path) -> bool:
    """Whether a directory is one of a run: rings or incidents are in it."""
    with contextlib.suppress(OSError):
        return (path / FOLDER).is_dir() or any(path.glob("*.ring"))
    return False


def known_incidents(runs: list[Path] | None = None) -> list[Known]:
    """Those of these runs, or of all, newest first."""
    found = [known for run in (runs_newest_first() if runs is None else runs) for known in incidents_of(run)]
    return sorted(found, key=lambda known: known.wall_at, reverse=True)


def incidents_of(run: Path) -> list[Known]:
    """Those of one run, oldest first."""
    shelf = IncidentShelf(run)
    found = [Known(run, name, _readable(shelf, name)) for name in shelf.names()]
    # What a damaged ring holds is no reason to show nothing.
    with contextlib.suppress(OSError, ValueError):
        unfiled = None if is_alive(run) else unfiled_incident(run)
        if unfiled is not None:
            told = tell_unfiled(unfiled)
            found.append(Known(run, told["incident"]["name"], told["incident"], told))
    with contextlib.suppress(OSError, ValueError):
        known = {each.name for each in found}
        unwritten = [told for told in unwritten_incidents(run) if told["incident"]["name"] not in known]
        found += [_unwritten(run, told) for told in unwritten]
    return found


def _unwritten(run: Path, told: dict[str, Any]) -> Known:
    document = _as_it_is(told["incident"], run)
    return Known(run, document["name"], document, {**told, "incident": document})


def _readable(shelf: IncidentShelf, name: str) -> dict[str, Any]:
    run = shelf.path.parent
    return _as_it_is(mended(shelf.read(name), name, run.name), run)


def _as_it_is(document: dict[str, Any], run: Path) -> dict[str, Any]:
    """Of a dead run nothing stands still any more, though nobody was left to write that down."""
    return settled(document, "run_ended", None) if lasts(document) and not is_alive(run) else document

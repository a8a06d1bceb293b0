"""One line at a start about how the last run went wrong, said once; loads next to nothing."""

import contextlib
import os
from pathlib import Path

from vllm_obs.cli.live_run import is_alive, runs_newest_first
from vllm_obs.engine.run_dir import base_directory, is_ours_alone
from vllm_obs.telemetry.incident_mending import mended
from vllm_obs.telemetry.incident_shelf import IncidentShelf
from vllm_obs.telemetry.incident_stall import lasts, settled
from vllm_obs.telemetry.ring import RingError
from vllm_obs.telemetry.ring_reader import RingReader

MARKER = "incident.mentioned"
LAUNCHER_RING, API_RINGS = "Launcher.ring", "APIServer_*.ring"


def incident_notice() -> str | None:
    """What to say of the newest run that is dead, if it left an incident that was not mentioned before.

    Nothing that is wrong with what it left keeps anybody from starting.
    """
    with contextlib.suppress(Exception):
        if not is_ours_alone(base_directory()):
            return None
        run = next((run for run in runs_newest_first() if not is_alive(run) and any(run.glob("*.ring"))), None)
        words = _words(run) if run is not None and not (run / MARKER).exists() else ""
        if run is not None and words:
            _mark(run)
            return words
    return None


def _words(run: Path) -> str:
    """Empty where it ended in order, as far as can be seen at a glance."""
    shelf = IncidentShelf(run)
    for name in reversed(shelf.names()):
        if (document := shelf.read(name)) is not None:
            document = mended(document, name, run.name)
            # The run is dead: whatever stood still does so no more.
            says = (settled(document, "run_ended", None) if lasts(document) else document)["says"]
            return f"The last run left an incident: {says} See: vllm-obs incident show {name}"
    if not _has_closed(run):
        return "The last run did not end in order, and nobody was left to say why. See: vllm-obs incident show"
    return ""


def _has_closed(run: Path) -> bool:
    """Whether its root closed its ring, so far as that can be read: the launcher, or else the API server."""
    for path in run.glob(LAUNCHER_RING if (run / LAUNCHER_RING).exists() else API_RINGS):
        with contextlib.suppress(RingError, OSError), RingReader(path) as reader:
            if not reader.header().closed_at:
                return False
    return True


def _mark(run: Path) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    os.close(os.open(run / MARKER, flags, 0o600))

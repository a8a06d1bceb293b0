"""Finds the runs that live by their run directories, and says what there is where none does."""

import fcntl
import json
import os
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.run_dir import age_order, base_directory, root_pid_of
from vllm_obs.telemetry.inspect_client import Inspector, InspectorError
from vllm_obs.telemetry.observer_address import INSPECT_FILE

PROBE_SECONDS = 2.0
"""How long an inspector may take to say of which run it is."""
_DEFAULT_PORT = 80


class Known(NamedTuple):
    """What a run's directory says of it. `address` is its inspector's, empty where none has been written."""

    directory: Path
    address: str
    api_address: str


def find_inspectors(url: str | None = None) -> list[Inspector]:
    """The inspector at `url`, or all that live, of the newest run first. ConfigError or InspectorError if none.

    Where `url` is a local API server's, its inspector is found.
    """
    if url:
        return [_inspector_at(url)]
    found = [_inspector_of(known) for known in _known_runs()]
    live = [inspector for inspector in found if inspector is not None]
    if not live:
        raise InspectorError(_why_none())
    return live


def find_inspector(url: str | None = None) -> Inspector:
    """The first of `find_inspectors`."""
    return find_inspectors(url)[0]


def inspector_of_root(pid: int) -> Inspector:
    """The inspector of the run whose root process this is. InspectorError while there is none."""
    for known in _known_runs():
        if root_pid_of(known.directory) == pid and (found := _inspector_of(known)) is not None:
            return found
    raise InspectorError(f"the server (pid {pid}) has no inspector that answers yet")


def runs_newest_first() -> list[Path]:
    """The directories of all runs under `base_directory()`, alive or not."""
    base = base_directory()
    if not base.is_dir():
        return []
    runs = [path for path in base.iterdir() if path.is_dir() and not path.is_symlink()]
    return sorted(runs, key=age_order, reverse=True)


def is_alive(run: Path) -> bool:
    """Whether the run's root process lives: it holds the directory's lock."""
    try:
        lock_fd = os.open(run / "lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock_fd)
    return False


def check_url(url: str) -> None:
    """ConfigError where no server can be at such an address."""
    try:
        parts = urlsplit(url)
        is_address = parts.scheme == "http" and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of a port that is none
        is_address = False
    if not is_address:
        raise ConfigError(f"--url {url:.64} is not an http:// address")


def _inspector_at(url: str) -> Inspector:
    check_url(url)
    inspector = Inspector(url.rstrip("/"))
    try:
        return inspector._replace(run=_run_of(inspector))
    except InspectorError as error:
        if not error.status:
            raise
    for known in _known_runs():
        if _is_same_place(known.api_address, url) and (found := _inspector_of(known)) is not None:
            return found
    raise InspectorError(
        f"what answers at {url} is no inspector of vllm-obs; an API server prints the address of its own "
        "when it starts (Inspector: ...)"
    )


def _run_of(inspector: Inspector) -> str:
    """Which run it is of. Raises InspectorError; with a status where something else answers."""
    version = inspector.get("/inspect/version")
    if not isinstance(version, dict) or not isinstance(version.get("run"), str):
        raise InspectorError(f"what answers at {inspector.url} is no inspector of vllm-obs", 200)
    return str(version["run"])


def _known_runs() -> list[Known]:
    """The runs whose Observer has told where it is, newest first."""
    known = []
    for run in runs_newest_first():
        try:
            found = json.loads((run / INSPECT_FILE).read_bytes())
            known.append(Known(run, str(found["address"]), str(found.get("api_address", ""))))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return known


def _inspector_of(known: Known) -> Inspector | None:
    """The run's inspector if it answers for that very run."""
    inspector = Inspector(known.address)
    try:
        run = _run_of(inspector._replace(timeout_seconds=PROBE_SECONDS))
    except InspectorError:
        return None
    return inspector._replace(run=run) if run == known.directory.name else None


def _why_none() -> str:
    runs = runs_newest_first()
    for run in runs:
        if is_alive(run):
            return f"the Observer of run {run.name} does not answer (yet); vllm-obs record saves what the run did"
    for run in runs:
        if any(run.glob("*.ring")):
            return (
                f"no live run is known under {base_directory()}. To look at the last one, which has ended: "
                f"vllm-obs record last.rec --run {run} && vllm-obs replay last.rec"
            )
    return f"no live run is known under {base_directory()}; give its inspector's address with --url"


def _is_same_place(address: str, url: str) -> bool:
    """Whether both are of one port of this machine."""
    known, asked = urlsplit(address), urlsplit(url)
    if not known.hostname or known.port != (asked.port or _DEFAULT_PORT):
        return False
    local = {"127.0.0.1", "localhost", "::1", "0.0.0.0", "::"}
    return known.hostname == asked.hostname or {known.hostname, asked.hostname} <= local

"""The directory of one run: fresh, 0700, locked while its root process lives; and what dead runs left behind."""

import contextlib
import fcntl
import os
import re
import shutil
import stat
import time
from pathlib import Path
from types import TracebackType

from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.incident_archive import begun_at, has_incidents, is_stripped, prune_stripped, strip

NUM_DEAD_RUNS_KEPT = 5
LOOP_SECONDS = 3600.0
"""A run with an incident that began so long before the newest may be the first of a crash loop."""
LOCK_TIMEOUT_SECONDS = 5.0
_RUN_NAME = re.compile(r"\d{8}-\d{6}-\d+(-\d+)?")


class RunDirectory:
    """A run's own directory. Its lock proves that the run lives; the kernel drops it with the process."""

    def __init__(self, path: Path, lock_fd: int) -> None:
        self.path = path
        self._lock_fd = lock_fd

    @classmethod
    def create(cls, base: Path | None = None) -> "RunDirectory":
        """A new directory under `base` (default `base_directory()`), after pruning the dead runs there."""
        base = base or base_directory()
        _make_private(base)
        base_lock = _lock_file(base / ".lock", LOCK_TIMEOUT_SECONDS)
        try:
            prune_dead_runs(base)
            path = _make_run(base)
            return cls(path, _lock_file(path / "lock", LOCK_TIMEOUT_SECONDS))
        finally:
            os.close(base_lock)

    def close(self) -> None:
        """Remove the run's sockets and pipes and give the lock back; its files stay for whoever reads them."""
        if self._lock_fd >= 0:
            _remove_doors(self.path)
            os.close(self._lock_fd)
            self._lock_fd = -1

    def __enter__(self) -> "RunDirectory":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def base_directory() -> Path:
    """Where runs live: VLLM_OBS_RUN_DIR, else $XDG_RUNTIME_DIR/vllm-obs, else /tmp/vllm-obs-UID."""
    if named := os.environ.get("VLLM_OBS_RUN_DIR"):
        return Path(named)
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "vllm-obs"
    return Path(f"/tmp/vllm-obs-{os.getuid()}")


def prune_dead_runs(base: Path) -> None:
    """Remove all dead runs of this user but five, and the sockets and pipes of those; incidents stay for longer.

    They are the last five; but if an older one with an incident began within an hour before the newest, the oldest
    of those is kept in the place of the fifth: in a crash loop it tells the first cause. Of the others that left
    incidents those are kept (incident_archive.py). A run is dead when it is ours and nobody holds its lock.
    Whatever else lies in `base` is left alone.
    """
    runs = [path for path in base.iterdir() if _RUN_NAME.fullmatch(path.name) and is_ours(path)]
    dead = [path for path in sorted(runs, key=age_order, reverse=True) if not _is_locked(path)]
    whole = [path for path in dead if not is_stripped(path)]
    kept, older = whole[:NUM_DEAD_RUNS_KEPT], whole[NUM_DEAD_RUNS_KEPT:]
    if first := [path for path in older if _may_tell_first_cause(path, whole[0])]:
        kept[-1] = first[-1]
    for path in kept:
        _remove_doors(path)
    for path in whole:
        if path not in kept and not strip(path):
            shutil.rmtree(path, ignore_errors=True)
    prune_stripped([path for path in dead if path not in kept and path.is_dir()])


def _may_tell_first_cause(run: Path, newest: Path) -> bool:
    return has_incidents(run) and begun_at(newest) - begun_at(run) <= LOOP_SECONDS


def age_order(path: Path) -> tuple[str, int]:
    """Sorts runs by their beginning. The lock is as old as the run; the directory changes with every new file."""
    lock = path / "lock"
    return path.name[:15], (lock if lock.exists() else path).stat().st_mtime_ns


def root_pid_of(path: Path) -> int:
    """The pid of the process that made this run, which its name tells; 0 where it does not."""
    parts = path.name.split("-")
    return int(parts[2]) if len(parts) > 2 and parts[2].isdecimal() else 0


def _make_run(base: Path) -> Path:
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    for attempt in range(100):
        path = base / (f"{stem}-{attempt}" if attempt else stem)
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            continue
        except OSError as error:
            raise ConfigError(f"cannot make the run directory {path}: {error.strerror}") from None
        return path
    raise ConfigError(f"no free name for a run directory under {base} after 100 attempts")


def _make_private(base: Path) -> None:
    try:
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make the directory {base} for runs: {error.strerror}") from None
    if not is_ours(base):
        raise ConfigError(f"{base} is not a directory of this user; set VLLM_OBS_RUN_DIR to one that is")
    if _can_be_written_by_others(base):
        raise ConfigError(f"{base} can be written by other users; set VLLM_OBS_RUN_DIR to one that cannot")


def is_ours(path: Path) -> bool:
    """Whether it is a directory (and no link to one) of this user."""
    found = path.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def is_ours_alone(path: Path) -> bool:
    """Whether it is a directory of this user in which nobody else can put anything."""
    return is_ours(path) and not _can_be_written_by_others(path)


def _can_be_written_by_others(path: Path) -> bool:
    return bool(stat.S_IMODE(path.lstat().st_mode) & 0o022)


def _is_locked(run: Path) -> bool:
    try:
        os.close(_lock_file(run / "lock", 0.0))
    except ConfigError:
        return True
    return False


def _lock_file(path: Path, timeout_seconds: float) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        lock_fd = os.open(path, flags, 0o600)
    except OSError as error:
        raise ConfigError(f"cannot open the lock {path}: {error.strerror}") from None
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(lock_fd)
                raise ConfigError(f"{path} stayed locked for {timeout_seconds:g} s") from None
            time.sleep(0.01)
        else:
            return lock_fd


def _remove_doors(run: Path) -> None:
    for path in run.glob("*"):
        with contextlib.suppress(OSError):
            mode = path.lstat().st_mode
            if stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode):
                path.unlink()

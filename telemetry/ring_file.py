"""Makes the file of a ring: whole, allocated, locked by its writer, and never in the place of an unread one."""

import contextlib
import fcntl
import mmap
import os
from pathlib import Path

from vllm_obs.telemetry.ring import HEADER_BYTES, RingError


def create_ring_file(path: Path, capacity: int) -> mmap.mmap:
    """A new zeroed file of one header page and `capacity` bytes at `path`, mapped for writing.

    The caller fills the header and then calls `publish_ring_file`; until then the file has a name that readers do
    not look for. The file holds an exclusive flock as long as the mapping is open, so that readers can tell a dead
    writer. Raises RingError if the file cannot be made or there is no room for it.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        ring_fd = os.open(_unpublished(path), flags, 0o600)
    except OSError as error:
        raise RingError(f"cannot create the ring {path}: {error.strerror}") from None
    try:
        return _map(ring_fd, HEADER_BYTES + capacity)
    except OSError as error:
        _unpublished(path).unlink(missing_ok=True)
        raise RingError(f"no room for {HEADER_BYTES + capacity} bytes of ring {path}: {error.strerror}") from None
    finally:
        # The mapping holds a duplicate of the descriptor, and with it the lock.
        os.close(ring_fd)


def publish_ring_file(path: Path) -> None:
    """Give a ring file its name. One that has it (a dead process's) becomes NAME.1.ring, or the next free."""
    try:
        with contextlib.suppress(FileNotFoundError):
            path.rename(_free_name(path))
        _unpublished(path).rename(path)
    except OSError as error:
        _unpublished(path).unlink(missing_ok=True)
        raise RingError(f"cannot name the ring {path}: {error.strerror}") from None


def _map(ring_fd: int, num_bytes: int) -> mmap.mmap:
    fcntl.flock(ring_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    # A store to a page that a full disk cannot give is SIGBUS, so every page is had now or the ring is not made.
    os.posix_fallocate(ring_fd, 0, num_bytes)
    # Faulting the pages in now keeps page faults out of the first lap.
    return mmap.mmap(ring_fd, num_bytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)


def _unpublished(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}")


def _free_name(path: Path) -> Path:
    number = 1
    while (candidate := path.with_name(f"{path.stem}.{number}{path.suffix}")).exists():
        number += 1
    return candidate

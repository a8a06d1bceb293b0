"""KeptFiles: what took long to make, kept in the user's cache directory for the next start."""

import contextlib
import functools
import hashlib
import logging
import os
import stat
import tempfile
from pathlib import Path

from vllm_obs.engine.run_dir import is_ours_alone

MAX_FILES = 128
MAX_BYTES = 256 << 20
"""Of all files of a kind; the ones that were not used for longest go first."""

_MARK = b"vllm-obs kept 2\n"
_DIGEST_BYTES = hashlib.sha256().digest_size
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""A link is not followed, and nobody is waited for."""

_logger = logging.getLogger(__name__)


def cache_directory() -> Path | None:
    """Where this user's programs keep such things; None where there is no such place."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if named.is_absolute():  # any other is to be ignored, as that of who starts us elsewhere
        return named / "vllm-obs"
    try:
        return Path.home() / ".cache" / "vllm-obs"
    except RuntimeError:
        return None


class KeptFiles:
    """Files of one kind, under the hash of all that their content depends on. Nothing is raised.

    Only what this user alone could have written is read, and only if its checksum, of the key too, is right: a
    damaged file is removed, and said. Where nothing can be kept everything is made anew, which is said once.
    """

    def __init__(
        self, kind: str, base: Path | None = None, max_files: int = MAX_FILES, max_bytes: int = MAX_BYTES
    ) -> None:
        base = base or cache_directory()
        self._folder = None if base is None else base / kind
        self._max_files = max_files
        self._max_bytes = max_bytes

    def find(self, key: bytes) -> bytes | None:
        """What was kept under that key; None where nothing was, or nothing that can be used."""
        path = self._path(key)
        if path is None or not _may_be_used(path.parent):
            return None
        try:
            content = _read(path, key)
        except (OSError, ValueError) as error:
            if not isinstance(error, FileNotFoundError | NotADirectoryError):
                _logger.warning("%s cannot be used and is made again: %s", path, _why(error))
                _remove(path)
            return None
        with contextlib.suppress(OSError):  # one that can only be read is as good
            os.utime(path)
        return content

    def keep(self, key: bytes, content: bytes) -> None:
        """Keep it, whole or not at all, and let go of others where there are too many."""
        path = self._path(key)
        if path is None:
            return
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if _may_be_used(path.parent):
                _write(path, key, content)
                self._make_room(path)
        except FileNotFoundError:  # another process made room, also of what was not finished
            _logger.info("%s is not kept this time", path)
        except OSError as error:
            _say_unused(path.parent, _why(error))

    def _path(self, key: bytes) -> Path | None:
        return None if self._folder is None else self._folder / hashlib.sha256(key).hexdigest()

    def _make_room(self, newest: Path) -> None:
        sizes: dict[Path, os.stat_result] = {}
        for path in newest.parent.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another process makes room as well
                sizes[path] = path.lstat()
        num_files, num_bytes = len(sizes), sum(each.st_size for each in sizes.values())
        for path, each in sorted(sizes.items(), key=lambda item: item[1].st_mtime_ns):
            if num_files <= self._max_files and num_bytes <= self._max_bytes:
                return
            if path != newest:
                _remove(path)
                num_files, num_bytes = num_files - 1, num_bytes - each.st_size


def _may_be_used(folder: Path) -> bool:
    """Whether nobody else could have put there what we would load. One that is not there yet may."""
    try:
        if is_ours_alone(folder):
            return True
    except FileNotFoundError:
        return True
    except OSError as error:
        _say_unused(folder, _why(error))
        return False
    _say_unused(folder, "it has to be a folder of this user that nobody else can write to (chmod 700)")
    return False


@functools.cache
def _say_unused(folder: Path, why: str) -> None:
    """Once: a program keeps many things."""
    _logger.warning("%s is not used, so each start takes longer: %s", folder, why)


def _read(path: Path, key: bytes) -> bytes:
    """The content of a file that is whole and ours. OSError, or ValueError that says what is wrong with it."""
    with os.fdopen(os.open(path, _FLAGS), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
            raise ValueError("it is not a file of this user alone")
        mark, digest, content = file.read(len(_MARK)), file.read(_DIGEST_BYTES), file.read()
    if mark != _MARK or _checksum(key, content) != digest:
        raise ValueError("it is damaged")
    return content


def _checksum(key: bytes, content: bytes) -> bytes:
    """Of the key too: a file that lies under another's name is as useless as a damaged one, and more dangerous."""
    return hashlib.sha256(hashlib.sha256(key).digest() + content).digest()


def _write(path: Path, key: bytes, content: bytes) -> None:
    descriptor, unfinished = tempfile.mkstemp(dir=path.parent, prefix="unfinished-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(_MARK + _checksum(key, content))
            file.write(content)
        Path(unfinished).rename(path)
    except BaseException:
        _remove(Path(unfinished))
        raise


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def _why(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)

"""KeyFile: the file of --api-key-file, read at the start and again whenever it has changed."""

import stat
import time
from collections.abc import Iterable
from pathlib import Path

from vllm_obs.engine.errors import ConfigError
from vllm_obs.server.accounts import split_named

MAX_KEY_CHARS = 4096
MAX_KEYS = 1024
MAX_FILE_CHARS = MAX_KEYS * MAX_KEY_CHARS
SETTLE_NS = 200_000_000
"""A file written to less than so long ago may not be whole yet: half a key would be a key, and a short one."""

Signature = tuple[int, int, int, int, int]
_GONE: Signature = (0, 0, 0, 0, 0)


class KeyFile:
    """Knows whether the file at `path` has changed since it was last looked at."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._seen: Signature | None = None

    def changed_keys(self, is_asked: bool = False) -> dict[str, str] | None:
        """Its keys with their names when it has changed, or somebody asked; else None. ConfigError, once a change.

        A change that is very young is left for the next look, unless somebody asked.
        """
        try:
            signature = self._signature()
        except OSError as error:
            if self._seen == _GONE and not is_asked:
                return None
            self._seen = _GONE
            raise ConfigError(f"--api-key-file {self.path}: {error.strerror}") from error
        age = time.time_ns() - signature[2]
        if not is_asked and (signature == self._seen or 0 <= age < SETTLE_NS):
            return None
        self._seen = signature
        return read_keys(self.path)

    def _signature(self) -> Signature:
        found = Path(self.path).stat()
        return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size


def doubt_of(path: str) -> str:
    """What is wrong with who else may read or write a key file; empty where nothing is. A group may read it."""
    try:
        mode = Path(path).stat().st_mode
    except OSError:
        return ""
    if not mode & (stat.S_IWGRP | stat.S_IROTH | stat.S_IWOTH):
        return ""
    return f"--api-key-file {path} has mode {stat.S_IMODE(mode):o}: others may read or write the keys in it"


def read_keys(path: str) -> dict[str, str]:
    """A key file's keys with their names. ConfigError for what is none, and for a file without a key.

    Without a key it would open the server to everybody.
    """
    try:
        with Path(path).open(encoding="utf-8") as file:
            text = file.read(MAX_FILE_CHARS + 1)
    except OSError as error:
        raise ConfigError(f"--api-key-file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--api-key-file {path} is not UTF-8 text") from error
    if len(text) > MAX_FILE_CHARS:
        raise ConfigError(f"--api-key-file {path} is over {MAX_FILE_CHARS} characters long")
    keys: dict[str, str] = {}
    for number_of_line, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                name, key = split_named(line.strip())
            except ValueError as error:
                raise ConfigError(f"--api-key-file {path}, line {number_of_line}: {error}") from None
            keys.setdefault(key, name)
    if not keys:
        raise ConfigError(f"--api-key-file {path} holds no key")
    check_keys(keys)
    return keys


def check_keys(keys: Iterable[str]) -> None:
    """ConfigError, which shows nothing of a key, for too many keys and for one that cannot be one."""
    listed = list(keys)
    if len(listed) > MAX_KEYS:
        raise ConfigError(f"{len(listed)} API keys are given; at most {MAX_KEYS} are allowed")
    for key in listed:
        if not 0 < len(key) <= MAX_KEY_CHARS or not key.isprintable():
            raise ConfigError(f"an API key is empty, unprintable or over {MAX_KEY_CHARS} characters long")

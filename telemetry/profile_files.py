"""ProfileFiles: the directories that profiles are written to; names that people give are looked up in them."""

import stat
import time
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from vllm_obs.telemetry.sample_file import SUFFIX as SAMPLES_SUFFIX

RUN_FOLDER = "profiles"
TABLE_SUFFIX = ".operators.json"
MAX_PROFILES = 32
MAX_FILES = 256
MAX_TABLE_BYTES = 8 << 20
MAX_TABLES = 64


class ProfileFile(NamedTuple):
    """One finished file."""

    name: str
    path: Path
    num_bytes: int


class ProfileFiles:
    """Of one run: in its own directory, or where --profiler-config says."""

    def __init__(self, run_dir: Path, named: str = "") -> None:
        self.base = Path(named) if named else run_dir / RUN_FOLDER

    def names(self) -> list[str]:
        """The profiles that have files here, newest first."""
        found = [(path.lstat().st_mtime_ns, path.name) for path in self._directories() if self.files(path.name)]
        return [name for _, name in sorted(found, reverse=True)[:MAX_PROFILES]]

    def files(self, name: str) -> list[ProfileFile]:
        """The finished files of a profile, by name; none where there is no such profile."""
        directory = next((path for path in self._directories() if path.name == name), None)
        if directory is None:
            return []
        return sorted(_finished(directory))[:MAX_FILES]

    def tables(self, name: str) -> list[dict[str, Any]]:
        """The tables of operators of every rank; what cannot be read is left out."""
        tables: list[Any] = []
        for file in self.files(name):
            if file.name.endswith(TABLE_SUFFIX) and file.num_bytes <= MAX_TABLE_BYTES and len(tables) < MAX_TABLES:
                try:
                    tables.append(orjson.loads(file.path.read_bytes()))
                except (OSError, ValueError):
                    continue
        return [table for table in tables if isinstance(table, dict)]

    def free_name(self, kind: str) -> str:
        """What a profile that begins now is called."""
        stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{kind}"
        taken = {path.name for path in self._directories()}
        return next(name for number in range(len(taken) + 1) if (name := _numbered(stem, number)) not in taken)

    def _directories(self) -> list[Path]:
        try:
            return [path for path in self.base.iterdir() if stat.S_ISDIR(path.lstat().st_mode)]
        except OSError:
            return []


def _numbered(stem: str, number: int) -> str:
    return f"{stem}-{number}" if number else stem


def _finished(directory: Path) -> list[ProfileFile]:
    found = []
    try:
        for path in directory.iterdir():
            about = path.lstat()
            is_hidden = path.name.startswith(".") or path.name.endswith(".part")
            if stat.S_ISREG(about.st_mode) and not is_hidden:
                found.append(ProfileFile(path.name, path, about.st_size))
    except OSError:
        return []
    is_ours = any(file.name.endswith((TABLE_SUFFIX, SAMPLES_SUFFIX)) for file in found)
    return found if is_ours else []

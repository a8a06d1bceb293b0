"""IncidentShelf: the incident folders of one run, each whole or absent, so many at most."""

import contextlib
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

FOLDER = "incidents"
DOCUMENT = "incident.json"
MAX_INCIDENTS = 20
"""Of a run. Of those most often of one kind the oldest goes first."""
MAX_FILE_BYTES = 4 << 20
MAX_DOCUMENT_BYTES = 1 << 20
_NAME = re.compile(r"\d{8}-\d{6}-[a-z_]{1,32}-[A-Za-z0-9_]{1,64}(?:-\d{1,3})?")


class IncidentShelf:
    """`RUN_DIR/incidents`; made when the first incident is filed."""

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / FOLDER

    @classmethod
    def around(cls, folder: Path) -> "IncidentShelf":
        """The shelf that an incident's folder stands in, wherever that was copied to."""
        shelf = cls(folder.parent)
        shelf.path = folder.parent
        return shelf

    def names(self) -> list[str]:
        """All incidents by their folder's name, oldest first."""
        try:
            found = [path.name for path in self.path.iterdir() if _NAME.fullmatch(path.name)]
        except OSError:
            return []
        return sorted(found)

    def read(self, name: str) -> dict[str, Any] | None:
        """An incident's document; None where there is none of that name, or it cannot be read."""
        if not _NAME.fullmatch(name):
            return None
        try:
            content = (self.path / name / DOCUMENT).read_bytes()[:MAX_DOCUMENT_BYTES]
            document = json.loads(content)
        except (OSError, ValueError):
            return None
        return document if isinstance(document, dict) else None

    def documents(self) -> list[dict[str, Any]]:
        """All that can be read, oldest first."""
        return [document for name in self.names() if (document := self.read(name)) is not None]

    def add(
        self, name: str, files: Mapping[str, bytes], fill: Callable[[Path], None] = lambda folder: None
    ) -> str:
        """File an incident under that name, or the next free like it; the name. `fill` adds to its folder.

        A file is cut at MAX_FILE_BYTES. Raises OSError.
        """
        self.path.mkdir(mode=0o700, exist_ok=True)
        name = self.free_name(name)
        partial = self.path / f".{name}.{os.getpid()}"
        partial.mkdir(mode=0o700)
        try:
            for place, content in files.items():
                _write(partial / place, content[:MAX_FILE_BYTES])
            fill(partial)
            partial.rename(self.path / name)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        self._prune()
        return name

    def rewrite(self, name: str, document: bytes) -> None:
        """Replace an incident's document, at once or not at all. Raises OSError."""
        folder = self.path / name
        if not folder.is_dir():
            raise FileNotFoundError(f"no incident {name}")
        partial = folder / f".{DOCUMENT}.{os.getpid()}"
        try:
            partial.unlink(missing_ok=True)
            _write(partial, document[:MAX_FILE_BYTES])
            partial.replace(folder / DOCUMENT)
        except BaseException:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            raise

    def free_name(self, name: str, taken: Collection[str] = ()) -> str:
        """That name, or the next like it that neither the shelf has nor is `taken`."""
        candidates = [name, *(f"{name}-{number}" for number in range(2, 1000))]
        return next(each for each in candidates if each not in taken and not (self.path / each).exists())

    def _prune(self) -> None:
        names = self.names()
        while len(names) > MAX_INCIDENTS:
            (most, _), *_ = Counter(map(_kind_of, names)).most_common(1)
            oldest = next(name for name in names if _kind_of(name) == most)
            with contextlib.suppress(OSError):
                shutil.rmtree(self.path / oldest)
            names.remove(oldest)


def _kind_of(name: str) -> str:
    """Cause and role, without the moment."""
    return name[16:].rpartition("-")[0] if name.rpartition("-")[2].isdecimal() else name[16:]


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        file.write(content)

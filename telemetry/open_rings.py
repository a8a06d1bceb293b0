"""OpenRings: the ring files of a run directory, each kept open from one look to the next."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from vllm_obs.telemetry.ring import RingError, RingFormatError
from vllm_obs.telemetry.ring_reader import RingReader

MAX_RINGS = 256
"""Open at the same time; what is left out is looked at once others are done."""


class OpenRings:
    """Every `*.ring` that is of use. To open one takes ten times as long as to look at one that is open."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._readers: dict[int, RingReader | None] = {}
        """By inode, since a dead process's ring gets another name; None for one that is of no use any more."""

    def look(self) -> Iterator[RingReader]:
        """All that are there now and of which nobody has said that they are `done`."""
        self._discover()
        for reader in list(self._readers.values()):
            if reader is not None:
                yield reader

    def done(self, reader: RingReader) -> None:
        """Close this one and leave it out from now on."""
        reader.close()
        self._readers.update({inode: None for inode, each in self._readers.items() if each is reader})

    def close(self) -> None:
        """Let go of every file."""
        for reader in self._readers.values():
            if reader is not None:
                reader.close()
        self._readers.clear()

    def _discover(self) -> None:
        present: dict[int, str] = {}
        with contextlib.suppress(OSError), os.scandir(self._run_dir) as entries:
            for entry in entries:
                if entry.name.endswith(".ring") and not entry.name.startswith("."):
                    present[entry.inode()] = entry.name
        for inode in self._readers.keys() - present.keys():
            if (reader := self._readers.pop(inode)) is not None:
                reader.close()
        room = MAX_RINGS - sum(reader is not None for reader in self._readers.values())
        for inode in list(present.keys() - self._readers.keys())[:room]:
            with contextlib.suppress(RingError, OSError):  # it is tried again in the next look
                self._readers[inode] = _open(self._run_dir / present[inode])


def _open(path: Path) -> RingReader | None:
    """None for a file that is no ring. RingError or OSError where it cannot be opened now."""
    try:
        return RingReader(path)
    except RingFormatError:
        return None

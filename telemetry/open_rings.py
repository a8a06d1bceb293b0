"""OpenRings: the ring files of a run directory, each kept open from one look to the next."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from vllm_obs.telemetry.ring import RingError, RingFormatError
from vllm_obs.telemetry.ring_reader import RingReader

MAX_RINGS = 256
"""Open at the same time; what is left out is looked at once others are done."""


class _Done(NamedTuple):
    """A file that is of no use any more: the generation of its ring (0: it is none), and when it was written."""

    generation: int
    modified_at: int


class OpenRings:
    """Every `*.ring` that is of use. To open one takes ten times as long as to look at one that is open."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._readers: dict[int, RingReader] = {}
        """By inode, since a dead process's ring gets another name."""
        self._done: dict[int, _Done] = {}
        """By inode as well, which a new file may be given once the one that was done is gone."""

    def look(self) -> Iterator[RingReader]:
        """All that are there now and of which nobody has said that they are `done`."""
        self._discover()
        yield from list(self._readers.values())

    def done(self, reader: RingReader) -> None:
        """Close this one and leave it out from now on."""
        modified_at = reader.modified_at
        reader.close()
        for inode in [inode for inode, each in self._readers.items() if each is reader]:
            del self._readers[inode]
            self._done[inode] = _Done(reader.generation, modified_at)

    def close(self) -> None:
        """Let go of every file."""
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()
        self._done.clear()

    def _discover(self) -> None:
        present: dict[int, os.DirEntry[str]] = {}
        with contextlib.suppress(OSError), os.scandir(self._run_dir) as entries:
            for entry in entries:
                if entry.name.endswith(".ring") and not entry.name.startswith("."):
                    present[entry.inode()] = entry
        for inode in self._readers.keys() - present.keys():
            self._readers.pop(inode).close()
        for inode in self._done.keys() - present.keys():
            del self._done[inode]
        for inode, entry in present.items():
            if len(self._readers) < MAX_RINGS and inode not in self._readers:
                with contextlib.suppress(RingError, OSError):  # it is tried again in the next look
                    self._open(inode, entry)

    def _open(self, inode: int, entry: "os.DirEntry[str]") -> None:
        """Read it from now on, unless it is of no use. RingError or OSError where it cannot be opened now."""
        done, modified_at = self._done.get(inode), entry.stat().st_mtime_ns
        if done is not None and done.modified_at == modified_at:
            return
        try:
            reader = RingReader(self._run_dir / entry.name)
        except RingFormatError:
            self._done[inode] = _Done(0, modified_at)
            return
        if done is not None and done.generation == reader.generation:
            # The pages of a mapped file may be written long after they were changed.
            reader.close()
            self._done[inode] = _Done(reader.generation, modified_at)
            return
        self._done.pop(inode, None)
        self._readers[inode] = reader

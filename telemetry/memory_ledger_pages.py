"""ResidentPages: how much of some address ranges of a process is in RAM, as the kernel's page map tells."""

import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
ENTRY_BYTES = 8
CHUNK_ENTRIES = 1 << 18
"""A gigabyte of addresses at a time."""

_COUNTED = bytes(0x81 & byte == 0x81 for byte in range(256))
"""By the highest byte of an entry: in RAM, and mapped by this process alone. The page of zeros that stands for
what was read and never written is nobody's."""


class ResidentPages:
    """One process's page map, open. OSError where there is none or it may not be looked at."""

    def __init__(self, pid: int, proc: Path = Path("/proc")) -> None:
        self._file = (proc / str(pid) / "pagemap").open("rb", buffering=0)

    def __enter__(self) -> "ResidentPages":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def num_bytes(self, ranges: Iterable[tuple[int, int]]) -> int:
        """Bytes in RAM of all these ranges (first and last address, the last not included), of whole pages."""
        return PAGE_BYTES * sum(self._num_pages(begin // PAGE_BYTES, end // PAGE_BYTES) for begin, end in ranges)

    def _num_pages(self, first: int, end: int) -> int:
        num_found = 0
        self._file.seek(first * ENTRY_BYTES)
        while first < end:
            entries = self._file.read(min(CHUNK_ENTRIES, end - first) * ENTRY_BYTES)
            if len(entries) < ENTRY_BYTES:
                break
            num_found += entries[ENTRY_BYTES - 1 :: ENTRY_BYTES].translate(_COUNTED).count(1)
            first += len(entries) // ENTRY_BYTES
        return num_found

"""The files of a batch: lines in, one at a time, and lines out, each written at once."""

import os
import stat
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

from vllm_obs.engine.errors import VllmObsError
from vllm_obs.server.config import Limits

MAX_LINE_BYTES = Limits().max_body_bytes + (64 << 10)
"""A body as large as the server takes, and what stands around it."""


class BatchFileError(VllmObsError):
    """The input cannot be read on, or the output not written."""


class Line(NamedTuple):
    """A line of the input, counted from 1. Of one that is not whole, since it is too long, the rest is lost."""

    number: int
    content: bytes
    is_whole: bool


@dataclass(frozen=True)
class BatchFiles:
    """An open input and an open output."""

    input: BinaryIO
    output: BinaryIO


class LineReader:
    """Reads one line after another; what is not asked for is not read."""

    def __init__(self, file: BinaryIO, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self.num_bytes_read = 0
        self.num_bytes = _size_of(file)
        """Of the whole input; 0 where it is not known."""
        self._file = file
        self._max_line_bytes = max_line_bytes
        self._num_lines = 0
        self._has_ended = False

    def next(self) -> Line | None:
        """The next line that is not blank, None after the last. BatchFileError when it cannot be read."""
        while not self._has_ended:
            line = self._read()
            if line.content and not line.content.isspace():
                return line
            # Once is enough: a terminal would be asked again.
            self._has_ended = not line.content
        return None

    def _read(self) -> Line:
        content = self._readline()
        self._num_lines += 1
        is_whole = len(content) <= self._max_line_bytes
        rest = content
        while not is_whole and rest and not rest.endswith(b"\n"):
            rest = self._readline()
        return Line(self._num_lines, content, is_whole)

    def _readline(self) -> bytes:
        try:
            content = self._file.readline(self._max_line_bytes + 1)
        except OSError as error:
            raise BatchFileError(f"the input cannot be read on: {error.strerror or error}") from error
        self.num_bytes_read += len(content)
        return content


class LineWriter:
    """Writes lines, so that each is there when it returns."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, line: bytes) -> None:
        """Write a line, its end included. BatchFileError when that fails."""
        try:
            self._file.write(line)
            self._file.flush()
        except OSError as error:
            raise BatchFileError(f"the output cannot be written: {error.strerror or error}") from error


def _size_of(file: BinaryIO) -> int:
    try:
        status = os.fstat(file.fileno())
    except OSError:  # it is no file of the system's
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0

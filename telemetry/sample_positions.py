"""CodePositions: turns places in the bytecode into function, file and line, without a path of this host."""

import sys
from bisect import bisect_right
from collections.abc import Iterable
from pathlib import PurePath
from types import CodeType

from vllm_obs.telemetry.sample_set import Frame

MAX_NAME_CHARS = 160
"""A name is cut to this."""


class CodePositions:
    """Names the places of one process. Holds the code objects it is shown, so that their ids stay theirs."""

    def __init__(self, search_path: Iterable[str] | None = None) -> None:
        self._roots = roots_of(sys.path if search_path is None else search_path)
        self._codes: dict[int, CodeType] = {}
        self._lines: dict[int, tuple[list[int], list[int]]] = {}
        self._files: dict[str, str] = {}

    def keep(self, codes: Iterable[CodeType]) -> None:
        """Hold these code objects."""
        for code in codes:
            self._codes[id(code)] = code

    def frame(self, code_id: int, offset: int) -> Frame:
        """The place `offset` bytes into a code object that is kept."""
        code = self._codes[code_id]
        return Frame(
            code.co_qualname[:MAX_NAME_CHARS], self._file(code.co_filename), self._line(code_id, code, offset)
        )

    def _line(self, code_id: int, code: CodeType, offset: int) -> int:
        found = self._lines.get(code_id)
        if found is None:
            entries = [(start, line or 0) for start, _, line in code.co_lines()]
            found = self._lines[code_id] = ([start for start, _ in entries], [line for _, line in entries])
        starts, lines = found
        index = bisect_right(starts, max(offset, 0)) - 1
        return lines[index] if index >= 0 and lines[index] else code.co_firstlineno

    def _file(self, name: str) -> str:
        short = self._files.get(name)
        if short is None:
            short = self._files[name] = short_file(name, self._roots)[:MAX_NAME_CHARS]
        return short


def roots_of(search_path: Iterable[str]) -> list[str]:
    """The folders that modules are found in, each with a `/` behind it, the innermost first."""
    return sorted({root.rstrip("/") + "/" for root in search_path if root}, key=len, reverse=True)


def short_file(name: str, roots: Iterable[str]) -> str:
    """A source file relative to the first of the roots it is under; by its own name if it is under none."""
    for root in roots:
        if name.startswith(root):
            return name[len(root) :]
    return PurePath(name).name

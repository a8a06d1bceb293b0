"""Screen: what a conversation looks like, on a terminal and in a pipe."""

import contextlib
import os
import sys
from typing import TextIO

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
_KEPT = "\n\t"
_CONTROLS = {code: None for code in [*range(32), *range(127, 160)] if chr(code) not in _KEPT}
"""What a model writes must not steer the terminal."""


class Screen:
    """Writes a reply as it comes. Once nobody reads any more (`is_closed`), it writes nowhere."""

    def __init__(self, output: TextIO | None = None) -> None:
        self._output = output or sys.stdout
        self.is_terminal = self._output.isatty()
        self.is_closed = False

    def write(self, text: str) -> None:
        """Write a piece of a reply, now."""
        if self.is_closed or not text:
            return
        try:
            self._output.write(text.translate(_CONTROLS) if self.is_terminal else text)
            self._output.flush()
        except BrokenPipeError:
            self._close()

    def write_thought(self, text: str) -> None:
        """Write a piece of what the model thinks: dimmed on a terminal, else not at all."""
        if self.is_terminal and text and not self.is_closed:
            self._output.write(_DIM + text.translate(_CONTROLS) + _PLAIN)
            self._output.flush()

    def ask(self, prompt: str) -> str | None:
        """The next line that people type, or a pipe holds; None at the end."""
        is_typed = sys.stdin.isatty()
        if is_typed:
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401 (input() edits lines and remembers them, where it is there)
        try:
            return input(prompt if is_typed else "")
        except EOFError:
            if is_typed:
                self.write("\n")
            return None

    def stop(self) -> None:
        """A reply ends before it is whole; its colour too, should that be on."""
        if self.is_terminal and not self.is_closed:
            self._output.write(_PLAIN)

    def complain(self, text: str) -> None:
        """Tell what went wrong, in one line."""
        print(f"vllm-obs: {text.translate(_CONTROLS)}", file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        """Tell something beside the reply, in one line on standard error; dimmed on a terminal."""
        line = text.translate(_CONTROLS)
        print(f"{_DIM}{line}{_PLAIN}" if sys.stderr.isatty() else line, file=sys.stderr, flush=True)

    def _close(self) -> None:
        self.is_closed = True
        # Python flushes standard output once more at its end, and would complain there.
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._output.fileno())
            os.close(nowhere)

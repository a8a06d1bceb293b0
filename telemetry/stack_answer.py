"""StackAnswer: the thread of a process that writes the process's Python stacks down when it is asked to."""

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

ASK_SUFFIX = ".ask"
THREAD_COMM = "stack-answer"
"""By this name (of 15 characters at most) the kernel's list of threads shows the one that answers."""
START_LINE, END_LINE = "(stacks)\n", "(end of stacks)\n"
"""Around an answer: whoever reads it knows that it has all, and no more."""
MAX_THREADS = 256
MAX_FRAMES = 100
MAX_NAME_CHARS = 64
MAX_TEXT_BYTES = 512 * 1024
"""An answer, its last line with it, is never longer."""

_JOIN_SECONDS = 2.0
_logger = logging.getLogger(__name__)


class StackAnswer:
    """Waits at the named pipe TITLE.ask; for whatever is written there it appends all stacks to `fd`.

    It looks while it holds the interpreter's lock, when no frame can change under it. A signal handler has no such
    moment: it comes upon frames half made, even those of its own thread, and reading them may crash the process.
    OSError where no pipe can be made. It costs nothing until it is asked.
    """

    def __init__(self, run_dir: Path, title: str, fd: int) -> None:
        self._path = run_dir / f"{title}{ASK_SUFFIX}"
        self._fd = fd
        self._is_closed = False
        # A pipe of an earlier process of this title may still have its reader.
        self._path.unlink(missing_ok=True)
        os.mkfifo(self._path, 0o600)
        # Open for writing too, so that a read never ends because nobody else writes.
        self._pipe_fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        self._thread = threading.Thread(target=self._run, name="stack answer", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread and take the pipe away."""
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._path.unlink()
        os.write(self._pipe_fd, b".")
        self._thread.join(_JOIN_SECONDS)
        if not self._thread.is_alive():  # else its number must not become another file's
            os.close(self._pipe_fd)

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(THREAD_COMM)
        while os.read(self._pipe_fd, 4096) and not self._is_closed:
            try:
                _write(self._fd, _answer())
            except Exception as error:
                _logger.warning("the stacks of this process could not be written: %s", type(error).__name__)


def remove_pipes(run_dir: Path) -> None:
    """Take away the pipes of processes that were killed: whoever opened one to read would wait for ever."""
    for path in run_dir.glob(f"*{ASK_SUFFIX}"):
        with contextlib.suppress(OSError):
            if path.is_fifo():
                path.unlink()


def stacks_text() -> str:
    """The stacks of all threads but the caller's, each from its innermost call, as faulthandler writes them.

    The main thread comes first; each is given with its name, where Python knows one. MAX_THREADS, MAX_FRAMES each.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main, own = threading.main_thread().ident, threading.get_ident()
    found = {ident: frame for ident, frame in sys._current_frames().items() if ident != own}
    idents = sorted(found, key=lambda ident: ident != main)[:MAX_THREADS]
    return "\n".join("".join(_lines(ident, names.get(ident, ""), found[ident])) for ident in idents)


def _answer() -> bytes:
    end = END_LINE.encode()
    return (START_LINE + stacks_text()).encode(errors="replace")[: MAX_TEXT_BYTES - len(end)] + end


def _lines(ident: int, name: str, frame: FrameType | None) -> Iterator[str]:
    quoted = f' "{_plain(name)[:MAX_NAME_CHARS]}"' if name else ""
    yield f"Thread {ident:#018x}{quoted} (most recent call first):\n"
    for _ in range(MAX_FRAMES):
        if frame is None:
            return
        code = frame.f_code
        yield f'  File "{_plain(code.co_filename)}", line {frame.f_lineno or 0} in {_plain(code.co_name)}\n'
        frame = frame.f_back
    yield "  ...\n"


def _plain(text: str) -> str:
    """Without what would end a line or a quotation."""
    return "".join(letter if letter.isprintable() and letter != '"' else "?" for letter in text)


def _write(fd: int, content: bytes) -> None:
    while content:
        content = content[os.write(fd, content) :]

"""LogFile: a process's log lines in its run directory as well, bounded, for whoever reads them after its end."""

import io
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import RotatingFileHandler
from pathlib import Path

MAX_LOG_BYTES = 1 << 20
NUM_OLD_LOGS = 1
"""Each as large; of what came before nothing is kept."""

_logger = logging.getLogger(__name__)


class LogFile(RotatingFileHandler):
    """`DIRECTORY/TITLE.log`, readable by this user alone. Raises OSError when it cannot be opened."""

    def __init__(self, directory: Path, title: str, max_bytes: int = MAX_LOG_BYTES) -> None:
        self.directory = directory
        path = directory / f"{title}.log"
        super().__init__(path, maxBytes=max_bytes, backupCount=NUM_OLD_LOGS, encoding="utf-8")

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (logging's own name)
        """A full disk holds up nobody: the line is on stderr."""

    def _open(self) -> io.TextIOWrapper:
        # Not logging's own open: a link in its place must not be followed.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        log_fd = os.open(self.baseFilename, flags, 0o600)
        return io.TextIOWrapper(io.FileIO(log_fd, "a"), "utf-8", "backslashreplace", write_through=True)


def log_to_file(run_dir: str, title: str) -> None:
    """From now on this process logs to `run_dir` too, the lines it writes to stderr. Without a directory nowhere.

    A process that cannot write there goes on without.
    """
    root = logging.getLogger()
    if not run_dir or any(isinstance(handler, LogFile) for handler in root.handlers):
        return
    try:
        log_file = LogFile(Path(run_dir), title)
    except OSError as error:
        _logger.warning("this process goes on without a log file: %s", error)
        return
    log_file.setFormatter(next((handler.formatter for handler in root.handlers if handler.formatter), None))
    root.addHandler(log_file)


@contextmanager
def logged_to(run_dir: Path, title: str) -> Iterator[None]:
    """`log_to_file` for the length of a run."""
    log_to_file(str(run_dir), title)
    try:
        yield
    finally:
        _close_log_file()


def _close_log_file() -> None:
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, LogFile)]:
        root.removeHandler(handler)
        handler.close()

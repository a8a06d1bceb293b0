"""The one logging set-up of every process: stderr, with the process's name; ids and lengths, never prompts."""

import logging
import os
import traceback
from collections.abc import Iterator
from types import TracebackType

from vllm_obs.engine.errors import ConfigError, EngineDeadError, StartupError
from vllm_obs.telemetry.console import STDERR, ConsoleHandler

API_TITLE = "APIServer"
"""The one process that holds prompts and completions as text."""
MAX_CHAIN = 8

_FORMAT = "%(asctime)s.%(msecs)03d %(levelname)-7s [{title}] %(name)s: %(message)s"
_QUIET = ("asyncio", "urllib3", "httpx", "httpcore", "filelock", "huggingface_hub", "torch", "numba")
TEXTLESS = (ConfigError, StartupError, EngineDeadError, OSError, MemoryError)
"""Errors whose own words are about processes and files."""

_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class TextlessFormatter(logging.Formatter):
    """Of an exception it shows the place and the type; its words only where they cannot quote a request."""

    def formatException(self, ei: _ExcInfo) -> str:  # noqa: N802 (logging's own name)
        """The traceback."""
        return "\n".join(_told(error) for error in _chain(ei[1]))

    def format(self, record: logging.LogRecord) -> str:
        """The whole entry. What was made of the exception is not left for other handlers, nor theirs taken."""
        kept, record.exc_text = record.exc_text, None
        try:
            return super().format(record)
        finally:
            record.exc_text = kept

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's own name)
        """The line; of what asyncio tells of a lost task the rest, which shows its exception, is left out."""
        if record.name == "asyncio":
            record.message = record.message.partition("\n")[0]
        return super().formatMessage(record)


def configure_logging(title: str, level: str | None = None) -> None:
    """Send this process's log to stderr under its title; our own at `level`, other libraries from WARNING on.

    `level` defaults to VLLM_OBS_LOG_LEVEL, then INFO; a word that is no level counts as INFO.
    """
    handler = ConsoleHandler(STDERR)
    kind = TextlessFormatter if title.startswith(API_TITLE) else logging.Formatter
    handler.setFormatter(kind(_FORMAT.format(title=title), datefmt="%H:%M:%S"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("vllm_obs").setLevel(_known_level(level or os.environ.get("VLLM_OBS_LOG_LEVEL", "")))
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


def _known_level(word: str) -> int:
    return logging.getLevelNamesMapping().get(word.upper(), logging.INFO)


def _chain(error: BaseException | None) -> list[BaseException]:
    """What led to an exception, first cause first, and itself."""
    found: list[BaseException] = []
    while error is not None and error not in found and len(found) < MAX_CHAIN:
        found.append(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return found[::-1]


def _told(error: BaseException) -> str:
    return "".join(_lines(error)).rstrip()


def _lines(error: BaseException) -> Iterator[str]:
    yield "Traceback (most recent call last):\n"
    yield from traceback.format_tb(error.__traceback__)
    yield f"{type(error).__name__}: "
    yield str(error) if isinstance(error, TEXTLESS) else "(its words are left out: they may quote a request)"

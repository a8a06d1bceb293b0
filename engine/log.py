"""The one logging set-up of every process: stderr, with the process's name; ids and lengths, never prompts."""

import logging
import os
import sys

_FORMAT = "%(asctime)s.%(msecs)03d %(levelname)-7s [{title}] %(name)s: %(message)s"
_QUIET = ("asyncio", "urllib3", "httpx", "httpcore", "filelock", "huggingface_hub", "torch", "numba")


def configure_logging(title: str, level: str | None = None) -> None:
    """Send this process's log to stderr under its title; our own at `level`, other libraries from WARNING on.

    `level` defaults to VLLM_OBS_LOG_LEVEL, then INFO; a word that is no level counts as INFO.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(_FORMAT.format(title=title), datefmt="%H:%M:%S"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("vllm_obs").setLevel(_known_level(level or os.environ.get("VLLM_OBS_LOG_LEVEL", "")))
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


def _known_level(word: str) -> int:
    return logging.getLevelNamesMapping().get(word.upper(), logging.INFO)

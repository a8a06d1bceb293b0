"""The main of the Observer process: configuration from its owner's pipe, READY, and an end by order or EOF."""

import asyncio
import gc
import logging
import os
import signal
import sys
import time
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import NoReturn

from setproctitle import setproctitle

from vllm_obs.telemetry.console import STDERR, ConsoleHandler
from vllm_obs.telemetry.observer_config import ObserverConfig, ObserverConfigError
from vllm_obs.telemetry.observer_pipe import FAILED, ObserverPipe, PipeError
from vllm_obs.telemetry.stack_dump import register_stack_dump

EXIT_FAILED = 70
MAX_LOG_BYTES = 1 << 20

_FORMAT = "%(asctime)s.%(msecs)03d %(levelname)-7s [{title}] %(name)s: %(message)s"
_logger = logging.getLogger(__name__)


def main() -> NoReturn:
    """Run as `python -m vllm_obs.telemetry.observer_main ORDERS_FD STATUS_FD`."""
    started_at = time.monotonic_ns()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    try:
        pipe = ObserverPipe(int(sys.argv[1]), int(sys.argv[2]))
    except PipeError as error:
        print(f"vllm-obs observer: {error}", file=sys.stderr)
        os._exit(EXIT_FAILED)
    setproctitle(f"vllm-obs::{pipe.envelope.title}")
    _configure_logging(pipe.envelope.title)
    try:
        config = ObserverConfig.of(pipe.envelope.configuration)
        _log_to_file(config.run_dir, pipe.envelope.title)
        register_stack_dump(config.run_dir, pipe.envelope.title)
        gc.disable()  # next to nothing of what is loaded is garbage, and it would be looked at many times
        from vllm_obs.telemetry.observer_process import run_observer

        gc.enable()
        imported_at = time.monotonic_ns()
        asyncio.run(run_observer(config, pipe, started_at, imported_at))
    except ObserverConfigError as error:
        _fail(pipe, str(error))
    except Exception as error:
        _logger.exception("the Observer failed")
        _fail(pipe, f"{type(error).__name__}: {error}")
    sys.stderr.flush()
    os._exit(0)


def _fail(pipe: ObserverPipe, cause: str) -> NoReturn:
    pipe.say(FAILED, [cause, EXIT_FAILED])
    sys.stderr.flush()
    os._exit(EXIT_FAILED)


def _configure_logging(title: str) -> None:
    """As all processes of the run log; `engine/log.py` is not this room's to use."""
    handler = ConsoleHandler(STDERR)
    handler.setFormatter(logging.Formatter(_FORMAT.format(title=title), datefmt="%H:%M:%S"))
    logging.getLogger().handlers[:] = [handler]
    logging.getLogger().setLevel(logging.WARNING)
    word = os.environ.get("VLLM_OBS_LOG_LEVEL", "").upper()
    logging.getLogger("vllm_obs").setLevel(logging.getLevelNamesMapping().get(word, logging.INFO))


def _log_to_file(run_dir: Path, title: str) -> None:
    """As all processes of the run do, into RUN_DIR/TITLE.log; where that cannot be, stderr has it all."""
    try:
        log_file = RotatingFileHandler(
            run_dir / f"{title}.log", maxBytes=MAX_LOG_BYTES, backupCount=1, encoding="utf-8"
        )
    except OSError as error:
        _logger.warning("this process goes on without a log file: %s", error)
        return
    Path(log_file.baseFilename).chmod(0o600)
    log_file.setFormatter(logging.Formatter(_FORMAT.format(title=title), datefmt="%H:%M:%S"))
    log_file.handleError = lambda record: None  # type: ignore[method-assign]  # a full disk holds up nobody
    logging.getLogger().addHandler(log_file)


if __name__ == "__main__":
    main()

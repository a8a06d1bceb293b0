"""AcceptErrors: what the event loop says when no file is left for a connection, once a minute and counted."""

import asyncio
import errno
import logging
import time
from typing import Any

SAY_AGAIN_SECONDS = 60.0

_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

_logger = logging.getLogger(__name__)


class AcceptErrors:
    """An event loop's exception handler. asyncio tries again by itself, and would say each try in 20 lines."""

    def __init__(self) -> None:
        self.num_errors = 0
        self._say_again_at = 0.0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Leave everything else to the loop's own handler."""
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in _NO_ROOM and "accept" in context.get("message", "")):
            loop.default_exception_handler(context)
            return
        self.num_errors += 1
        if time.monotonic() >= self._say_again_at:
            self._say_again_at = time.monotonic() + SAY_AGAIN_SECONDS
            _logger.warning(
                "the inspector cannot take a connection: %s (%d such errors so far)",
                error.strerror,
                self.num_errors,
            )

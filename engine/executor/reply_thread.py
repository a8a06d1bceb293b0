"""The one thread that takes the ranks' replies off their queues and resolves the calls they belong to."""

import contextlib
import logging
import os
import select
import threading
from collections.abc import Callable, Sequence
from typing import cast

from vllm_obs.engine.codec_plain import WireError
from vllm_obs.engine.executor.commands import Reply, decode
from vllm_obs.engine.executor.pending_calls import PendingCalls
from vllm_obs.engine.executor.shm_queue import ShmQueueReader
from vllm_obs.engine.executor.shm_ring import QueueHandle, ShmQueueError

_CHECK_SECONDS = 1.0
_JOIN_SECONDS = 5.0

_logger = logging.getLogger(__name__)


class ReplyThread:
    """Reads one queue for each rank; they share one eventfd. Calls `fail(cause)` when replies make no sense."""

    def __init__(self, queues: Sequence[QueueHandle], calls: PendingCalls, fail: Callable[[str], None]) -> None:
        self._event_fd = queues[0].event_fds[0]
        self._readers = [ShmQueueReader(queue) for queue in queues]
        self._calls = calls
        self._fail = fail
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="worker replies", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and unmap the queues."""
        self._is_stopping = True
        os.eventfd_write(self._event_fd, 1)
        self._thread.join(_JOIN_SECONDS)
        for reader in self._readers:
            reader.close()

    def _run(self) -> None:
        try:
            self._read_replies()
        except Exception as error:
            _logger.exception("the reply thread died")
            self._fail(f"the reply thread died: {type(error).__name__}: {error}")

    def _read_replies(self) -> None:
        poll = select.poll()
        poll.register(self._event_fd, select.POLLIN)
        while not self._is_stopping:
            poll.poll(_CHECK_SECONDS * 1e3)
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._event_fd)
            # A message of several slots may swallow another queue's wake-up, hence until all are empty.
            while sum(self._empty(rank) for rank in range(len(self._readers))):
                continue
            if cause := self._calls.overdue():
                self._fail(cause)

    def _empty(self, rank: int) -> bool:
        """Take what lies in a rank's queue; whether there was anything."""
        has_found = False
        try:
            while (frames := self._readers[rank].read(0.0)) is not None:
                has_found = True
                if cause := self._calls.take(rank, cast(Reply, decode(frames))):
                    self._fail(cause)
        except (ShmQueueError, WireError) as error:
            self._is_stopping = True
            self._fail(f"{self._calls.titles[rank]} sent a reply that cannot be read: {error}")
        return has_found

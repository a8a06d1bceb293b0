"""The two threads between an agent's connection and its ranks' queues in shared memory."""

import contextlib
import os
import select
import threading
from collections.abc import Callable, Mapping, Sequence
from queue import Empty, Queue

from vllm_obs.engine.executor.shm_queue import ShmQueueReader, ShmQueueWriter, join_frames, split_frames
from vllm_obs.engine.executor.shm_ring import QueueHandle, ShmQueueError

PLAN_TIMEOUT_SECONDS = 10.0
"""How long a command may wait for a rank that does not read."""
_CHECK_SECONDS = 0.5
_JOIN_SECONDS = 5.0

Fail = Callable[[str], None]


class CommandRelay:
    """Writes what host 0 sends into the queue that every rank of this host reads."""

    def __init__(self, commands: "Queue[bytes]", plans: QueueHandle, titles: Sequence[str], fail: Fail) -> None:
        self._commands = commands
        self._writer = ShmQueueWriter(plans)
        self._titles = titles
        self._fail = fail
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="commands", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and unmap the queue."""
        self._is_stopping = True
        self._thread.join(PLAN_TIMEOUT_SECONDS + _JOIN_SECONDS)
        self._writer.close()

    def _run(self) -> None:
        while not self._is_stopping:
            try:
                body = self._commands.get(timeout=_CHECK_SECONDS)
            except Empty:
                continue
            try:
                self._writer.write(split_frames(body), PLAN_TIMEOUT_SECONDS)
            except ShmQueueError as error:
                who = self._titles[error.reader] if error.reader >= 0 else "the queue of commands"
                self._fail(f"{who} takes no commands: {error}")
                return


class ReplyRelay:
    """Reads every rank's queue of replies, which share one eventfd, and hands each reply on with its rank."""

    def __init__(self, queues: Mapping[int, QueueHandle], reply: Callable[[int, bytes], None], fail: Fail) -> None:
        self._event_fd = next(iter(queues.values())).event_fds[0]
        self._readers = {rank: ShmQueueReader(queue) for rank, queue in queues.items()}
        self._reply = reply
        self._fail = fail
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="replies", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and unmap the queues."""
        self._is_stopping = True
        os.eventfd_write(self._event_fd, 1)
        self._thread.join(_JOIN_SECONDS)
        for reader in self._readers.values():
            reader.close()

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._event_fd, select.POLLIN)
        try:
            while not self._is_stopping:
                poll.poll(_CHECK_SECONDS * 1e3)
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._event_fd)
                # A message of several slots may swallow another queue's wake-up, hence until all are empty.
                while any([self._empty(rank) for rank in self._readers]):  # noqa: C419 (each is to be looked at)
                    continue
        except ShmQueueError as error:
            self._fail(f"a reply cannot be read: {error}")

    def _empty(self, rank: int) -> bool:
        has_found = False
        while (frames := self._readers[rank].read(0.0)) is not None:
            has_found = True
            self._reply(rank, join_frames(frames))
        return has_found

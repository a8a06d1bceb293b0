"""The memory under a shared-memory queue: a header with one cursor for each reader, then fixed slots."""

import fcntl
import mmap
import os
from dataclasses import dataclass
from typing import Literal

from vllm_obs.engine.errors import VllmObsError

QueueReason = Literal["timeout", "checksum", "sequence", "length", "header", "cut", "closed"]

_MAGIC = 0x766F_6273_7269_6E02
LINE_BYTES = 64
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class ShmQueueError(VllmObsError):
    """The queue cannot go on, for a reason from a closed set. `reader` is the one that is behind, or -1."""

    def __init__(self, reason: QueueReason, detail: str, reader: int = -1) -> None:
        super().__init__(f"shared-memory queue: {reason}: {detail}")
        self.reason: QueueReason = reason
        self.reader = reader

    @property
    def is_refusal(self) -> bool:
        """Whether a writer was told that its message is too long: nothing was written, the next may go."""
        return self.reason == "length"


@dataclass(frozen=True)
class QueueHandle:
    """What a process needs to attach: descriptors it has inherited under these numbers, and the layout.

    `event_fds[i]` wakes reader i; readers may share one, which wakes them all. `relays[i]`, if not -1, is what
    reader i rings when it is woken: to wake those is its business then, not the writer's. Empty: nobody relays.
    """

    memory_fd: int
    event_fds: tuple[int, ...]
    num_slots: int
    slot_bytes: int
    relays: tuple[int, ...] = ()

    @property
    def num_readers(self) -> int:
        """How many readers must have taken a slot before it is written again."""
        return len(self.event_fds)

    @property
    def total_bytes(self) -> int:
        """The size of the memory."""
        return LINE_BYTES * (1 + self.num_readers) + self.num_slots * (LINE_BYTES + self.slot_bytes)

    @property
    def fds(self) -> list[int]:
        """All descriptors, to be passed to a child."""
        return [self.memory_fd, *dict.fromkeys(self.event_fds)]


def create_queue(
    event_fds: tuple[int, ...], num_slots: int = 16, slot_bytes: int = 1 << 16, relays: tuple[int, ...] = ()
) -> QueueHandle:
    """A queue in anonymous memory: no name in any file system, gone with the last process that has it.

    `event_fds` has an eventfd for each reader; readers of one queue, and several queues, may share one.
    """
    memory_fd = os.memfd_create("vllm-obs-queue", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    handle = QueueHandle(memory_fd, event_fds, num_slots, slot_bytes, relays)
    os.ftruncate(memory_fd, handle.total_bytes)
    fcntl.fcntl(memory_fd, fcntl.F_ADD_SEALS, _SEALS)
    ring = ShmRing(handle, is_new=True)
    ring.close()
    return handle


class ShmRing:
    """The mapped memory. Sequences and cursors are aligned 64-bit words, each written by one process only.

    `cursor_words[i]` is where reader i keeps the number of slots it has taken.
    """

    def __init__(self, handle: QueueHandle, is_new: bool = False) -> None:
        found = os.fstat(handle.memory_fd).st_size
        if found != handle.total_bytes:
            raise ShmQueueError("header", f"{found} bytes of memory, expected {handle.total_bytes}")
        self._map = mmap.mmap(handle.memory_fd, found)
        self.num_slots, self.slot_bytes = handle.num_slots, handle.slot_bytes
        self.bytes = memoryview(self._map)
        self.words = self.bytes.cast("Q")
        self.cursor_words = [(1 + reader) * LINE_BYTES // 8 for reader in range(handle.num_readers)]
        self._slots_at = LINE_BYTES * (1 + handle.num_readers)
        layout = [_MAGIC, handle.num_slots, handle.slot_bytes, handle.num_readers]
        if is_new:
            for word, value in enumerate(layout):
                self.words[word] = value
        if list(self.words[:4]) != layout:
            raise ShmQueueError("header", f"{list(self.words[:4])}, expected {layout}")

    def slot_word(self, sequence: int) -> int:
        """The first header word of the slot that holds the message chunk with that sequence."""
        return (self._slots_at + sequence % self.num_slots * (LINE_BYTES + self.slot_bytes)) // 8

    def payload(self, sequence: int, num_bytes: int) -> memoryview:
        """The first `num_bytes` of that slot's payload."""
        start = self.slot_word(sequence) * 8 + LINE_BYTES
        return self.bytes[start : start + num_bytes]

    def close(self) -> None:
        """Unmap the memory; the descriptors stay open."""
        self.words.release()
        self.bytes.release()
        self._map.close()

"""A message queue in shared memory: one writer, N readers, bounded waits, sequence and checksum on every slot."""

import os
import select
import struct
import sys
import time
from collections.abc import Sequence
from zlib import crc32

from vllm_obs.engine.codec_arrays import Buffer
from vllm_obs.engine.executor.shm_ring import LINE_BYTES, QueueHandle, ShmQueueError, ShmRing
from vllm_obs.engine.wire import MAX_FRAMES

MAX_MESSAGE_BYTES = 256 << 20
CUT_TIMEOUT_SECONDS = 30.0
"""How long a reader waits for the rest of a message that spans several slots."""
RELAY_PATIENCE_SECONDS = 1.0
"""How long a reader waits for another to wake it, before it looks by itself."""
_CHECKSUM_ATTEMPTS = 5
_MAX_NAP_SECONDS = 0.001
_CHECKED = struct.Struct("=QQQ")
_TWO_LENGTHS = struct.Struct("=3I")
"""Most messages have two frames."""


class ShmQueueWriter:
    """The one writer. A message larger than a slot goes through several, one after the other."""

    def __init__(self, handle: QueueHandle) -> None:
        self._ring = ShmRing(handle)
        self._event_fds = tuple(fd for fd in dict.fromkeys(handle.event_fds) if fd not in handle.relays)
        self._sequence = 0
        self._slowest = 0
        self._is_cut = False

    def write(self, frames: Sequence[Buffer], timeout_seconds: float) -> None:
        """Write one message for every reader.

        Raises ShmQueueError("timeout") naming the slowest reader when it stays a full ring behind for that
        long ("cut" for every write after one that was left half done), and "length" for a message too large.
        """
        body = join_frames(frames)
        if self._is_cut:
            raise ShmQueueError("cut", "an earlier message was left half written")
        if len(body) <= self._ring.slot_bytes and self._sequence - self._slowest < self._ring.num_slots:
            self._publish(body, 0)
            return
        view, deadline = memoryview(body), time.monotonic() + timeout_seconds
        for start in range(0, len(body), self._ring.slot_bytes):
            chunk = view[start : start + self._ring.slot_bytes]
            self._is_cut = start > 0
            self._wait_for_room(deadline)
            self._publish(chunk, len(body) - start - len(chunk))
        self._is_cut = False

    def close(self) -> None:
        """Unmap the memory."""
        self._ring.close()

    def _wait_for_room(self, deadline: float) -> None:
        nap = 2e-5
        while self._sequence - self._slowest >= self._ring.num_slots:
            cursors = [self._ring.words[word] for word in self._ring.cursor_words]
            self._slowest = min(cursors)
            if self._sequence - self._slowest < self._ring.num_slots:
                return
            if time.monotonic() >= deadline:
                reader = cursors.index(self._slowest)
                behind = self._sequence - self._slowest
                raise ShmQueueError("timeout", f"reader {reader} is {behind} slots behind", reader)
            time.sleep(nap)
            nap = min(2 * nap, _MAX_NAP_SECONDS)

    def _publish(self, chunk: Buffer, num_following: int) -> None:
        ring, published, num_bytes = self._ring, self._sequence + 1, len(chunk)
        word = ring.slot_word(self._sequence)
        begin = word * 8 + LINE_BYTES
        ring.bytes[begin : begin + num_bytes] = chunk
        checksum = crc32(chunk, crc32(_CHECKED.pack(published, num_bytes, num_following)))
        _CHECKED.pack_into(ring.bytes, word * 8 + 8, num_bytes, num_following, checksum)
        ring.words[word] = published
        self._sequence = published
        for fd in self._event_fds:
            os.eventfd_write(fd, 1)


class ShmQueueReader:
    """One of the readers. After any ShmQueueError the queue is of no more use.

    It takes nothing out of its eventfd, and is woken by a write to it since it last slept (edge-triggered): all
    readers may share one, and the writer wakes them with one call. Who is woken by another reader looks by itself
    now and then, should that one stand still.
    """

    def __init__(self, handle: QueueHandle, index: int = 0) -> None:
        self._ring = ShmRing(handle)
        event_fd = handle.event_fds[index]
        os.set_blocking(event_fd, False)
        self._relay_fd = handle.relays[index] if handle.relays else -1
        self._patience_seconds = RELAY_PATIENCE_SECONDS if event_fd in handle.relays else CUT_TIMEOUT_SECONDS
        self._cursor_word = self._ring.cursor_words[index]
        self._sequence = self._ring.words[self._cursor_word]
        self._bell = select.epoll(1)
        self._bell.register(event_fd, select.EPOLLIN | select.EPOLLET)

    def read(self, timeout_seconds: float) -> list[Buffer] | None:
        """The next message's frames, or None when none came in that time.

        Raises ShmQueueError: "checksum", "sequence" or "length" for a slot that is not what the writer left
        there, "cut" when the rest of a message did not follow.
        """
        chunk, num_following = self._take(time.monotonic() + timeout_seconds)
        if chunk is None:
            return None
        if len(chunk) + num_following > MAX_MESSAGE_BYTES:
            raise ShmQueueError("length", f"a message of {len(chunk) + num_following} bytes")
        return split_frames(chunk if not num_following else self._take_rest(chunk, num_following))

    def close(self) -> None:
        """Unmap the memory."""
        self._bell.close()
        self._ring.close()

    def _take_rest(self, first: bytes, num_following: int) -> bytes:
        chunks, deadline = [first], time.monotonic() + CUT_TIMEOUT_SECONDS
        while num_following:
            chunk, num_left = self._take(deadline)
            if chunk is None:
                raise ShmQueueError("cut", f"{num_following} bytes of a message did not follow")
            if not chunk or len(chunk) + num_left != num_following:
                raise ShmQueueError("sequence", "a chunk of another message")
            chunks.append(chunk)
            num_following = num_left
        return b"".join(chunks)

    def _take(self, deadline: float) -> tuple[bytes | None, int]:
        while not self._has_next():
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return None, 0
            self._bell.poll(min(remaining, self._patience_seconds), 1)
        if self._relay_fd >= 0:
            os.eventfd_write(self._relay_fd, 1)
        chunk, num_following = self._checked_chunk()
        self._sequence += 1
        self._ring.words[self._cursor_word] = self._sequence
        return chunk, num_following

    def _has_next(self) -> bool:
        expected = self._sequence + 1
        found = self._ring.words[self._ring.slot_word(self._sequence)]
        if found == expected:
            return True
        if found != max(0, expected - self._ring.num_slots):
            raise ShmQueueError("sequence", f"slot {found} where {expected} comes next")
        return False

    def _checked_chunk(self) -> tuple[bytes, int]:
        """The chunk and what follows. Tried again a few times: some CPUs show the sequence before the rest."""
        for _ in range(_CHECKSUM_ATTEMPTS):
            word = self._ring.slot_word(self._sequence)
            num_bytes, num_following, checksum = self._ring.words[word + 1 : word + 4]
            if num_bytes <= self._ring.slot_bytes:
                chunk = bytes(self._ring.payload(self._sequence, num_bytes))
                if checksum == crc32(chunk, crc32(_CHECKED.pack(self._sequence + 1, num_bytes, num_following))):
                    return chunk, num_following
            time.sleep(1e-4)
        if num_bytes > self._ring.slot_bytes:
            raise ShmQueueError("length", f"{num_bytes} bytes in a slot of {self._ring.slot_bytes}")
        raise ShmQueueError("checksum", f"slot {self._sequence + 1} is torn")


def join_frames(frames: Sequence[Buffer]) -> bytes:
    """One message body: the number of frames, their lengths, then the frames."""
    if len(frames) == 2:
        body = _TWO_LENGTHS.pack(2, len(frames[0]), len(frames[1])) + frames[0] + frames[1]
    else:
        body = b"".join([struct.pack(f"={1 + len(frames)}I", len(frames), *map(len, frames)), *frames])
    if len(body) > MAX_MESSAGE_BYTES:
        raise ShmQueueError("length", f"a message of {len(body)} bytes; the limit is {MAX_MESSAGE_BYTES}")
    return body


def split_frames(body: bytes) -> list[Buffer]:
    """The frames of a message body, as views of it; ShmQueueError when the lengths do not add up."""
    num_frames = int.from_bytes(body[:4], sys.byteorder)
    if num_frames > MAX_FRAMES or 4 * (1 + num_frames) > len(body):
        raise ShmQueueError("length", f"{num_frames} frames in {len(body)} bytes")
    lengths = struct.unpack_from(f"={num_frames}I", body, 4)
    start, view = 4 * (1 + num_frames), memoryview(body)
    if start + sum(lengths) != len(body):
        raise ShmQueueError("length", "frames and their lengths disagree")
    frames: list[Buffer] = []
    for length in lengths:
        frames.append(view[start : start + length])
        start += length
    return frames

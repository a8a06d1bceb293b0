"""The shared-memory queue: every message whole, in order, to every reader, or a named error within a bound."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from zlib import crc32

import pytest

from vllm_obs.engine.codec_arrays import Buffer
from vllm_obs.engine.executor import shm_queue
from vllm_obs.engine.executor.shm_queue import ShmQueueReader, ShmQueueWriter, join_frames, split_frames
from vllm_obs.engine.executor.shm_ring import QueueHandle, ShmQueueError, ShmRing, create_queue

SLOT_BYTES = 256
NUM_SLOTS = 4

Make = Callable[..., tuple[QueueHandle, ShmQueueWriter, list[ShmQueueReader]]]


@pytest.fixture
def make() -> Iterator[Make]:
    """A small queue with its writer and readers; all is closed at the end."""
    closers: list[Callable[[], None]] = []

    def make_queue(num_readers: int = 1) -> tuple[QueueHandle, ShmQueueWriter, list[ShmQueueReader]]:
        handle = create_queue(tuple(os.eventfd(0) for _ in range(num_readers)), NUM_SLOTS, SLOT_BYTES)
        writer = ShmQueueWriter(handle)
        readers = [ShmQueueReader(handle, index) for index in range(num_readers)]
        closers.extend([writer.close, *[reader.close for reader in readers]])
        closers.extend([lambda fd=fd: os.close(fd) for fd in handle.fds])  # type: ignore[misc]
        return handle, writer, readers

    yield make_queue
    for close in closers:
        close()


def read(reader: ShmQueueReader, seconds: float = 5.0) -> list[bytes]:
    frames = reader.read(seconds)
    assert frames is not None, "a message came"
    return [bytes(frame) for frame in frames]


def test_every_reader_gets_every_message_in_order(make: Make) -> None:
    _, writer, readers = make(3)
    for number in range(10):
        writer.write([b"%d" % number, b"", b"x" * number], 1.0)
        for reader in readers:
            assert read(reader) == [b"%d" % number, b"", b"x" * number]
    assert [reader.read(0.0) for reader in readers] == [None] * 3


@pytest.mark.parametrize("num_bytes", [0, 1, 243, 244, 245, 600, NUM_SLOTS * SLOT_BYTES - 12, 100_000])
def test_a_message_of_any_size_arrives_whole(make: Make, num_bytes: int) -> None:
    _, writer, readers = make(2)
    message = [random.Random(num_bytes).randbytes(num_bytes), b"end"]
    received: list[list[bytes]] = []
    threads = [threading.Thread(target=lambda r=reader: received.append(read(r))) for reader in readers]
    for thread in threads:
        thread.start()
    writer.write(message, 5.0)
    for thread in threads:
        thread.join()
    assert received == [message] * 2


def test_a_reader_that_sleeps_is_woken(make: Make) -> None:
    _, writer, (reader,) = make()
    timer = threading.Timer(0.2, writer.write, ([b"late"], 1.0))
    timer.start()
    begun = time.monotonic()
    assert read(reader, 10.0) == [b"late"]
    assert time.monotonic() - begun < 5.0
    timer.join()


def test_readers_that_share_an_eventfd_are_all_woken_by_one_write() -> None:
    handle = create_queue((os.eventfd(0),) * 3, NUM_SLOTS, SLOT_BYTES)
    writer, readers = ShmQueueWriter(handle), [ShmQueueReader(handle, index) for index in range(3)]
    received: list[list[list[bytes]]] = [[], [], []]

    def take(index: int) -> None:
        received[index] = [read(readers[index]) for _ in range(100)]

    threads = [threading.Thread(target=take, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for number in range(100):
        time.sleep(0.002 * (number % 3 == 0))
        writer.write([b"%d" % number], 5.0)
    for thread in threads:
        thread.join()
    assert received == [[[b"%d" % number] for number in range(100)]] * 3
    for end in (writer, *readers):
        end.close()
    assert len(handle.fds) == 2
    for fd in handle.fds:
        os.close(fd)


Relayed = tuple[ShmQueueWriter, list[ShmQueueReader]]


@pytest.fixture
def relayed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Relayed]:
    """A queue of which the first of three readers wakes the others."""
    monkeypatch.setattr(shm_queue, "RELAY_PATIENCE_SECONDS", 0.2)
    first, others = os.eventfd(0), os.eventfd(0)
    handle = create_queue((first, others, others), NUM_SLOTS, SLOT_BYTES, relays=(others, -1, -1))
    writer, readers = ShmQueueWriter(handle), [ShmQueueReader(handle, index) for index in range(3)]
    yield writer, readers
    for end in (writer, *readers):
        end.close()
    for fd in handle.fds:
        os.close(fd)


def test_the_writer_wakes_one_reader_who_wakes_the_others(relayed: Relayed) -> None:
    writer, readers = relayed
    for reader in readers:
        reader._patience_seconds = 30.0
    received: list[list[bytes]] = []
    threads = [threading.Thread(target=lambda r=reader: received.append(read(r, 20.0))) for reader in readers]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    writer.write([b"a"], 1.0)
    for thread in threads:
        thread.join(10.0)
    assert received == [[b"a"]] * 3


def test_whom_nobody_wakes_looks_by_himself(relayed: Relayed) -> None:
    """The first reader stands still."""
    writer, (_, second, _) = relayed
    timer = threading.Timer(0.1, writer.write, ([b"a"], 1.0))
    timer.start()
    assert read(second, 20.0) == [b"a"]
    timer.join()


def test_waiting_for_a_message_has_a_deadline_and_costs_nothing(make: Make) -> None:
    _, _, (reader,) = make()
    cpu, begun = time.thread_time(), time.monotonic()
    assert reader.read(0.5) is None
    assert 0.45 < time.monotonic() - begun < 3.0
    assert time.thread_time() - cpu < 0.1


def test_a_reader_a_full_ring_behind_stops_the_writer_and_is_named(make: Make) -> None:
    _, writer, readers = make(3)
    for number in range(NUM_SLOTS):
        writer.write([b"%d" % number], 0.0)
        read(readers[0])
        read(readers[2])
    with pytest.raises(ShmQueueError, match="reader 1 is 4 slots behind") as failure:
        writer.write([b"one too many"], 0.1)
    assert (failure.value.reason, failure.value.reader) == ("timeout", 1)
    assert read(readers[1]) == [b"0"]
    writer.write([b"4"], 1.0)
    assert [read(readers[1]) for _ in range(4)] == [[b"1"], [b"2"], [b"3"], [b"4"]]
    assert [read(readers[0]), readers[0].read(0.0)] == [[b"4"], None]


def test_a_slow_reader_loses_nothing(make: Make) -> None:
    _, writer, (fast, slow) = make(2)
    messages = [[b"%d" % number, b"x" * (number % 900)] for number in range(100)]
    received: dict[int, list[list[bytes]]] = {0: [], 1: []}

    def take(index: int, reader: ShmQueueReader, nap: float) -> None:
        for _ in messages:
            received[index].append(read(reader))
            time.sleep(nap)

    threads = [threading.Thread(target=take, args=args) for args in ((0, fast, 0.0), (1, slow, 0.002))]
    for thread in threads:
        thread.start()
    for message in messages:
        writer.write(message, 5.0)
    for thread in threads:
        thread.join()
    assert received == {0: messages, 1: messages}


def test_a_message_left_half_written_ends_the_queue_on_both_sides(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, writer, (reader,) = make()
    with pytest.raises(ShmQueueError, match="timeout"):
        writer.write([b"x" * SLOT_BYTES * (NUM_SLOTS + 1)], 0.05)
    with pytest.raises(ShmQueueError, match="left half written"):
        writer.write([b"next"], 0.05)
    monkeypatch.setattr(shm_queue, "CUT_TIMEOUT_SECONDS", 0.1)
    with pytest.raises(ShmQueueError) as failure:
        reader.read(1.0)
    assert failure.value.reason == "cut"


def test_a_message_over_the_limit_is_refused_before_anything_is_written(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, writer, (reader,) = make()
    monkeypatch.setattr(shm_queue, "MAX_MESSAGE_BYTES", 1000)
    with pytest.raises(ShmQueueError, match="the limit is 1000"):
        writer.write([b"x" * 1000], 0.1)
    writer.write([b"y"], 0.1)
    assert read(reader) == [b"y"]


def damage_payload(ring: ShmRing) -> None:
    ring.payload(0, 1)[0] ^= 1


def damage_checksum(ring: ShmRing) -> None:
    ring.words[ring.slot_word(0) + 3] ^= 1


def damage_length(ring: ShmRing) -> None:
    ring.words[ring.slot_word(0) + 1] -= 1


def lengthen(ring: ShmRing) -> None:
    ring.words[ring.slot_word(0) + 1] = SLOT_BYTES + 1


def promise_more(ring: ShmRing) -> None:
    """A following length of its own making, with a checksum that fits."""
    word = ring.slot_word(0)
    num_bytes = ring.words[word + 1]
    ring.words[word + 2] = 1 << 40
    header = crc32(shm_queue._CHECKED.pack(1, num_bytes, 1 << 40))
    ring.words[word + 3] = crc32(ring.payload(0, num_bytes), header)


def jump(ring: ShmRing) -> None:
    ring.words[ring.slot_word(0)] = 9


def back(ring: ShmRing) -> None:
    ring.words[ring.slot_word(0)] = 2**64 - 1


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (damage_payload, "checksum"),
        (damage_checksum, "checksum"),
        (damage_length, "checksum"),
        (lengthen, "length"),
        (promise_more, "length"),
        (jump, "sequence"),
        (back, "sequence"),
    ],
)
def test_a_slot_that_is_not_as_written_is_an_error_and_never_a_message(
    make: Make, damage: Callable[[ShmRing], None], reason: str
) -> None:
    handle, writer, (reader,) = make()
    writer.write([b"hello"], 1.0)
    ring = ShmRing(handle)
    damage(ring)
    ring.close()
    with pytest.raises(ShmQueueError) as failure:
        reader.read(1.0)
    assert failure.value.reason == reason


def test_a_payload_without_its_sequence_is_not_seen(make: Make) -> None:
    handle, writer, (reader,) = make()
    writer.write([b"hello"], 1.0)
    ring = ShmRing(handle)
    ring.words[ring.slot_word(0)] = 0
    assert reader.read(0.05) is None
    ring.words[ring.slot_word(0)] = 1
    ring.close()
    assert read(reader) == [b"hello"]


def test_memory_of_another_layout_is_refused(make: Make) -> None:
    handle, _, _ = make(2)
    for other in (
        QueueHandle(handle.memory_fd, handle.event_fds, NUM_SLOTS + 1, SLOT_BYTES),
        QueueHandle(handle.memory_fd, handle.event_fds[:1], NUM_SLOTS, SLOT_BYTES + 16),
    ):
        with pytest.raises(ShmQueueError, match="header"):
            ShmQueueReader(other)


def test_the_memory_can_neither_shrink_nor_grow(make: Make) -> None:
    handle, _, _ = make()
    for size in (0, 1 << 20):
        with pytest.raises(PermissionError):
            os.ftruncate(handle.memory_fd, size)


@pytest.mark.parametrize(
    "body", [b"\xff\xff\xff\xff", b"\x01\x00\x00\x00\x05\x00\x00\x00abc", b"\x02\x00\x00\x00\x00"]
)
def test_a_body_whose_lengths_do_not_add_up_is_an_error(body: bytes) -> None:
    with pytest.raises(ShmQueueError, match="length"):
        split_frames(body)


def test_frames_are_joined_and_split() -> None:
    for frames in ([], [b""], [b"a", b"", b"bc" * 100]):
        assert split_frames(join_frames(frames)) == frames


WRITER = """
import os, sys
from vllm_obs.engine.executor.shm_queue import ShmQueueWriter
from vllm_obs.engine.executor.shm_ring import QueueHandle
memory_fd, event_fd, num_slots, slot_bytes = map(int, sys.argv[1:])
writer = ShmQueueWriter(QueueHandle(memory_fd, (event_fd,), num_slots, slot_bytes))
number = 0
while True:
    writer.write([b"%d" % number, bytes([number % 256]) * (number * 37 % 1500)], 10)
    number += 1
"""


def test_a_writer_killed_at_any_moment_leaves_whole_messages_only(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shm_queue, "CUT_TIMEOUT_SECONDS", 0.3)
    handle, _, (reader,) = make()
    arguments = [str(number) for number in (*handle.fds, NUM_SLOTS, SLOT_BYTES)]
    with subprocess.Popen([sys.executable, "-c", WRITER, *arguments], pass_fds=handle.fds) as writer:
        numbers = [int(check_body(read(reader, 30.0))) for _ in range(300)]
        writer.send_signal(signal.SIGKILL)
    reasons: list[str] = []
    while not reasons and (frames := read_or_reason(reader, reasons)) is not None:
        numbers.append(int(check_body([bytes(frame) for frame in frames])))
    assert reasons in ([], ["cut"])
    assert numbers == list(range(len(numbers)))


def read_or_reason(reader: ShmQueueReader, reasons: list[str]) -> list[Buffer] | None:
    try:
        return reader.read(0.3)
    except ShmQueueError as error:
        reasons.append(error.reason)
        return None


def check_body(frames: list[bytes]) -> bytes:
    number = int(frames[0])
    assert frames[1] == bytes([number % 256]) * (number * 37 % 1500)
    return frames[0]

"""At every store of the writer, and before it, a reader finds whole records and counts the rest exactly."""

from collections.abc import Callable
from pathlib import Path

from vllm_obs.telemetry.flight_recorder import FlightRecorder
from vllm_obs.telemetry.record_codec import RecordDecoder
from vllm_obs.telemetry.records import FrameDropped
from vllm_obs.telemetry.ring import FRAME_BYTES, padded
from vllm_obs.telemetry.ring_reader import RingCursor, RingReader

# Two laps of 64-byte frames, but the last of the second is too long for its place: the mark that the next frame is
# at the start falls on a whole record. Then all lengths.
LENGTHS = [20] * 127 + [120] + [number * 37 % 200 for number in range(120)]


class WatchedWords:
    """The header's words of a recorder, with a look at the ring before and after every store."""

    def __init__(self, words: memoryview, look: Callable[[], None]) -> None:
        self._words = words
        self._look = look

    def __getitem__(self, index: int) -> int:
        return int(self._words[index])

    def __setitem__(self, index: int, value: int) -> None:
        self._look()
        self._words[index] = value
        self._look()

    def release(self) -> None:
        self._words.release()


def test_no_store_shows_a_reader_half_a_record(
    make_recorder: Callable[..., FlightRecorder], ring_path: Path, dropped: Callable[..., FrameDropped]
) -> None:
    recorder, decoder = make_recorder(), RecordDecoder()
    num_looks, oldest = 0, None

    def look() -> None:
        # Each look begins at the oldest record of the one before, which is what the next store may overwrite.
        nonlocal num_looks, oldest
        num_looks += 1
        with RingReader(ring_path, oldest) as reader:
            expected = reader.cursor.sequence
            frames = reader.read()
            records = [decoder.decode(frame.payload) for frame in frames]
            seen = [record.dropped_at for record in records if isinstance(record, FrameDropped)]
            first = expected + reader.num_lost
            assert seen == list(range(first, first + len(records)))
            # The last record is published a moment before it is counted.
            assert first + len(seen) - reader.header().sequence in (0, 1)
            assert reader.num_torn == 0
            if frames:
                begin = frames[0].end - FRAME_BYTES - padded(len(frames[0].payload))
                oldest = RingCursor(reader.generation, begin, first)

    recorder._words = WatchedWords(recorder._words, look)  # type: ignore[assignment]
    for number, length in enumerate(LENGTHS):
        recorder.record(dropped(number, length))
    assert num_looks >= len(LENGTHS) * 6
    # The recorder takes every error for a record that cannot be encoded, a failed look too.
    with RingReader(ring_path) as reader:
        assert (reader.header().num_unencodable, reader.header().sequence) == (0, len(LENGTHS))

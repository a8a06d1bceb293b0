"""RingTail: reads all rings of a run directory as one stream in order of time, and remembers where it is."""

import logging
import os
import time
from bisect import insort
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from pathlib import Path

from vllm_obs.telemetry.process_roles import engine_of_role
from vllm_obs.telemetry.record_codec import RecordDecoder
from vllm_obs.telemetry.ring import RingError
from vllm_obs.telemetry.ring_header import RingHeader
from vllm_obs.telemetry.ring_reader import RingCursor
from vllm_obs.telemetry.ring_stream import RingStream
from vllm_obs.telemetry.view import Fact, Source

MAX_RECORDS = 65_536
MAX_PAST_RINGS = 256
SETTLED_NS = 2_500_000_000
"""A directory that changed so long ago shows any later change by another time: at the coarsest they count 2 s."""

logger = logging.getLogger(__name__)


class RingTail:
    """All `*.ring` files of a directory, new ones as they appear, each file once whatever it is called later.

    Of records that happened in different processes an earlier one comes first, as far as both have been written
    when it is read. Within one source the order is the writer's. Rings of dead processes are read to their end,
    which a SourceGone marks, and closed.
    """

    def __init__(self, run_dir: Path, cursors: Iterable[RingCursor] = ()) -> None:
        self._run_dir = run_dir
        self._cursors = {cursor.generation: cursor for cursor in cursors}
        self._decoder = RecordDecoder()
        self._streams: dict[int, RingStream] = {}
        self._past: OrderedDict[int, RingCursor] = OrderedDict()
        self._known_files: dict[tuple[int, int], str] = {}
        self._looked_at_change = 0
        """When the directory had changed last, as it was looked through (wall ns); 0: look again in any case."""

    def drain(self, max_records: int = MAX_RECORDS) -> Iterator[tuple[Source, Fact]]:
        """The next facts, at most `max_records`; none when all that is published has been read."""
        self._discover()
        streams = sorted(self._streams.values(), key=_reading_order)
        for stream in streams:
            stream.begin_round()
        ready = [
            (stream.next_moment(), place, stream) for place, stream in enumerate(streams) if self._has_next(stream)
        ]
        ready.sort()
        num_given = 0
        while ready and num_given < max_records:
            _, place, stream = ready.pop(0)
            source, take, until = stream.source, stream.take, ready[0][0] if ready else None
            while num_given < max_records and (fact := take(until)) is not None:
                num_given += 1
                yield source, fact
            if self._has_next(stream):
                insort(ready, (stream.next_moment(), place, stream))
        self._forget_finished()

    def cursors(self) -> list[RingCursor]:
        """Where each ring's next fact is, for a checkpoint: what `drain` has given counts as taken."""
        return [*(stream.cursor for stream in self._streams.values()), *self._past.values()]

    def close(self) -> None:
        """Let go of every file."""
        for stream in self._streams.values():
            stream.close()
        self._streams.clear()

    def _has_next(self, stream: RingStream) -> bool:
        try:
            return stream.has_next(self._decoder)
        except RingError as error:
            _complain(error)
            stream.give_up()
            return stream.has_next(self._decoder)

    def _discover(self) -> None:
        present: dict[tuple[int, int], str] = {}
        try:
            changed_at = self._run_dir.stat().st_mtime_ns
            if changed_at == self._looked_at_change:
                return
            with os.scandir(self._run_dir) as entries:
                for entry in entries:
                    if entry.name.endswith(".ring") and not entry.name.startswith("."):
                        found = entry.stat(follow_symlinks=False)
                        present[found.st_dev, found.st_ino] = entry.name
        except OSError as error:
            logger.warning("cannot look into %s: %s", self._run_dir, error.strerror)
            return
        for key, name in present.items():
            if key not in self._known_files:
                self._open(name)
        self._known_files = present
        self._looked_at_change = changed_at if time.time_ns() - changed_at > SETTLED_NS else 0

    def _open(self, name: str) -> None:
        try:
            stream = RingStream.open(self._run_dir / name, source_of, self._cursors)
        except RingError as error:
            _complain(error)
            return
        if stream.source.generation in self._streams or stream.source.generation in self._past:
            stream.close()
        else:
            self._streams[stream.source.generation] = stream

    def _forget_finished(self) -> None:
        for generation, stream in list(self._streams.items()):
            if stream.is_finished:
                stream.close()
                del self._streams[generation]
                self._past[generation] = stream.cursor
                if len(self._past) > MAX_PAST_RINGS:
                    self._past.popitem(last=False)


def source_of(header: RingHeader) -> Source:
    """The process that writes a ring. Engine 0 is meant where a core's or worker's role names none."""
    return Source(header.role, header.pid, header.generation, engine_of_role(header.role), header.host)


def _complain(error: RingError) -> None:
    logger.warning("a ring is left out: %s", error)


def _reading_order(stream: RingStream) -> bool:
    """Engines before API servers: what made an engine act was written before, so it will be seen as well."""
    return not stream.source.engine

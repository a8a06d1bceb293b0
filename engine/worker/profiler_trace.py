"""TraceFile: ranges as Chrome trace events in a (gzipped) JSON file, for Perfetto, written a piece at a time."""

import gzip
import json
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from vllm_obs.engine.worker.profiler_step import CapturedStep, Range

CHUNK_BYTES = 1 << 16
GZIP_LEVEL = 4
FIRST_STREAM_TRACK = 1_000_000_000
"""Streams of devices have numbers from here on, above all of the kernel's."""


class TraceSite(NamedTuple):
    """Whose trace it is, by name and number of process and thread."""

    process: str
    pid: int
    thread: str
    tid: int


class TraceFile:
    """Times are the run's monotonic clock in µs, as they are: files of several ranks lie side by side.

    Written under a name of its own until `close`.
    """

    def __init__(self, path: Path, site: TraceSite) -> None:
        self._path = path
        self._part = path.with_name(path.name + ".part")
        self._site = site
        self._tracks: dict[str, int] = {}
        self._chunk: list[str] = []
        self._num_chars = 0
        is_packed = path.suffix == ".gz"
        self._file: Any = gzip.GzipFile(self._part, "wb", GZIP_LEVEL) if is_packed else self._part.open("wb")
        self._write('{"displayTimeUnit":"ms","traceEvents":[\n')
        self._write(_metadata("process_name", site.pid, site.tid, site.process))
        self._write("," + _metadata("thread_name", site.pid, site.tid, site.thread))

    def add(self, one: Range) -> None:
        """A range of the thread that ran the steps."""
        self._event(one, self._site.tid, _detail(one))

    def add_step(self, step: CapturedStep, one: Range) -> None:
        """The range of a whole step, with its sizes."""
        self._event(one, self._site.tid, f'"step":{step.step},"rows":{step.num_rows},"tokens":{step.num_tokens}')

    def add_device(self, track: str, one: Range) -> None:
        """Work on a stream of a device."""
        tid = self._tracks.get(track)
        if tid is None:
            tid = self._tracks[track] = FIRST_STREAM_TRACK + len(self._tracks)
            self._write("," + _metadata("thread_name", self._site.pid, tid, track))
        self._event(one, tid, _detail(one))

    def close(self, facts: dict[str, Any]) -> None:
        """End the file, with these facts beside the events, and give it its name."""
        self._write(f'],"otherData":{json.dumps(facts)}}}\n')
        self._flush()
        self._file.close()
        self._part.replace(self._path)

    def discard(self) -> None:
        """Leave no file."""
        self._file.close()
        self._part.unlink(missing_ok=True)

    def _event(self, one: Range, tid: int, arguments: str) -> None:
        begun, length = one.begun_at, one.ended_at - one.begun_at
        self._write(
            f',{{"ph":"X","name":{_quoted(one.name)},"cat":"{one.kind}","pid":{self._site.pid},"tid":{tid},'
            f'"ts":{begun // 1000}.{begun % 1000:03},"dur":{length // 1000}.{length % 1000:03},'
            f'"args":{{{arguments}}}}}\n'
        )

    def _write(self, text: str) -> None:
        self._chunk.append(text)
        self._num_chars += len(text)
        if self._num_chars >= CHUNK_BYTES:
            self._flush()

    def _flush(self) -> None:
        self._file.write("".join(self._chunk).encode())
        self._chunk.clear()
        self._num_chars = 0


def _detail(one: Range) -> str:
    parts = []
    if one.detail:
        parts.append(f'"shapes":{_quoted(one.detail)}')
    if one.flops:
        parts.append(f'"flops":{one.flops}')
    return ",".join(parts)


@lru_cache(maxsize=4096)
def _quoted(text: str) -> str:
    return json.dumps(text)


def _metadata(kind: str, pid: int, tid: int, name: str) -> str:
    event = {"ph": "M", "name": kind, "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}}
    return json.dumps(event) + "\n"

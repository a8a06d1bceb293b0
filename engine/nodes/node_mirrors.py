"""NodeMirrors: writes what is recorded on the other hosts into this run's directory, in a thread of its own."""

import logging
import threading
from pathlib import Path
from queue import Full, Queue

from vllm_obs.telemetry.ring_chunk import RingChunkError
from vllm_obs.telemetry.ring_mirror import RingMirror

MAX_WAITING = 64
"""Chunks of 256 KiB. More than that is lost, and counted by whoever reads the mirrors."""
_JOIN_SECONDS = 5.0

_logger = logging.getLogger(__name__)


class NodeMirrors:
    """One mirror for each host by name. Telemetry may fail: an error leaves the host out, and nothing else."""

    def __init__(self, run_dir: str) -> None:
        self._run_dir = run_dir
        self._mirrors: dict[str, RingMirror] = {}
        self._waiting: Queue[tuple[str, bytes, int] | None] = Queue(MAX_WAITING)
        self._thread = threading.Thread(target=self._run, name="mirrors", daemon=True)
        self._thread.start()

    def positions(self, host: str) -> bytes:
        """What is here already of a host that has come; empty where nothing is to be kept."""
        if not self._run_dir:
            return b""
        try:
            mirror = self._mirrors[host] = RingMirror(Path(self._run_dir), host)
            return mirror.positions()
        except (OSError, ValueError) as error:
            _logger.warning("what is recorded on %s is left out: %s", host, error)
            return b""

    def write(self, host: str, chunk: bytes, offset_ns: int) -> None:
        """Take a chunk of a host's records, whose clock is so far behind ours. Never waits."""
        try:
            self._waiting.put_nowait((host, chunk, offset_ns))
        except Full:
            _logger.warning("records of %s are lost: they come faster than they can be written", host)

    def close(self) -> None:
        """Write what waits, and let go of every file."""
        try:
            self._waiting.put(None, timeout=_JOIN_SECONDS)
        except Full:
            return
        self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None:
            host, chunk, offset_ns = item
            mirror = self._mirrors.get(host)
            if mirror is not None:
                self._write(mirror, chunk, offset_ns)
        for mirror in self._mirrors.values():
            mirror.close()

    def _write(self, mirror: RingMirror, chunk: bytes, offset_ns: int) -> None:
        mirror.offset_ns = offset_ns
        try:
            mirror.write(chunk)
        except (RingChunkError, OSError) as error:
            _logger.warning("records of %s are left out: %s", mirror.host, error)
            del self._mirrors[mirror.host]
            mirror.close()

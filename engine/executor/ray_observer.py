"""RayObserver: the actor that reads what the ranks of one host record, and hands it on when it is asked."""

import time
from collections.abc import Sequence
from pathlib import Path

from vllm_obs.telemetry.ring_shipping import RingShipper

LOOK_SECONDS = 0.1
"""How often it looks for new records."""
MAX_CHUNKS = 16
"""In one answer, of 256 KiB each."""


class RayObserver:
    """One on each host that has ranks. It takes none of Ray's places, and its methods give bytes and numbers only.

    It reads the ranks' files and asks no process: what a rank wrote last is had even where the rank's actor is
    gone. Where this one ends Ray starts another, which begins as it did; what comes twice is known by its number.
    """

    def __init__(self, run_dirs: Sequence[str], positions: bytes) -> None:
        """Read the rings in these directories, past what the engine's host has already of them."""
        self._shippers = [RingShipper(Path(run_dir)) for run_dir in run_dirs]
        for shipper in self._shippers:
            if positions:
                shipper.resume(positions)

    def records(self, wait_seconds: float) -> tuple[int, list[bytes], int]:
        """(received at, what is new in chunks, answered at); waits for something new for that long."""
        received_at = time.monotonic_ns()
        deadline = time.monotonic() + wait_seconds
        while (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, LOOK_SECONDS))
            if chunks := self._new():
                break
        else:
            chunks = self._new()
        return received_at, chunks, time.monotonic_ns()

    def _new(self) -> list[bytes]:
        chunks: list[bytes] = []
        for shipper in self._shippers:
            while len(chunks) < MAX_CHUNKS and (chunk := shipper.next_chunk()):
                chunks.append(chunk)
        return chunks

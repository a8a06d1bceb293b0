"""RingMirror: writes the rings of another host into a run directory here, by this host's clock."""

import contextlib
import logging
import re
from collections import OrderedDict
from pathlib import Path

from vllm_obs.telemetry.record_codec import RecordDecoder, encode
from vllm_obs.telemetry.record_moments import shifted
from vllm_obs.telemetry.ring import HOST_BYTES, RingError
from vllm_obs.telemetry.ring_chunk import RingPart, decode_chunk, encode_positions
from vllm_obs.telemetry.ring_mirror_file import MirrorRing
from vllm_obs.telemetry.ring_reader import RingReader

MAX_RINGS = 64
"""Of one host at the same time."""
MAX_PAST_RINGS = 256
NUM_KEPT = 3
"""Mirrors of one role whose processes are dead, besides the newest; older files go."""
_HOST = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._:-]{{0,{HOST_BYTES - 1}}}")

_logger = logging.getLogger(__name__)


class RingMirror:
    """The rings of one host as files ROLE@HOST.ring, which the Observer reads like those of its own host.

    `offset_ns` is what that host's monotonic clock is behind this one's (ours less theirs). It may be set again as
    often as it is measured, for clocks drift; records from then on have it. `num_left_out` counts records that
    could not be read here. Telemetry may fail: where a file cannot be made the ring is left out, with a warning.
    ValueError for a name that is no host's.
    """

    def __init__(self, run_dir: Path, host: str, offset_ns: int = 0) -> None:
        if not _HOST.fullmatch(host):
            raise ValueError(f"{host!r} is no host name of at most {HOST_BYTES} letters, digits and . _ : -")
        self.host = host
        self.offset_ns = offset_ns
        self.num_left_out = 0
        self._run_dir = run_dir
        self._decoder = RecordDecoder()
        self._rings: dict[int, MirrorRing] = {}
        self._ended: OrderedDict[int, int] = OrderedDict()
        """The next sequences of rings whose processes have ended, by generation."""
        self._before: OrderedDict[int, int] = OrderedDict()
        """And of those that an earlier mirror of this host has written so far."""
        self._look()

    def positions(self) -> bytes:
        """What is here already, for `RingShipper.resume`; also what a mirror before this one has written."""
        live = {generation: ring.next_sequence for generation, ring in self._rings.items()}
        return encode_positions({**self._before, **self._ended, **live})

    def write(self, chunk: bytes) -> None:
        """Take the next chunk in. RingChunkError, and nothing is written, where these bytes are none."""
        for part in decode_chunk(chunk):
            ring = self._rings.get(part.generation) or self._begin(part)
            if ring is not None:
                self._take(ring, part)

    def close(self) -> None:
        """The host is lost, or the run is over: whatever process of it still lived is dead to this host."""
        for generation in list(self._rings):
            self._part_with(generation)

    def _take(self, ring: MirrorRing, part: RingPart) -> None:
        for sequence, payload in zip(part.sequences, part.payloads, strict=True):
            if sequence < ring.next_sequence:
                continue  # it came twice
            record = self._decoder.decode(payload)
            if record is None:
                self.num_left_out += 1
            else:
                ring.append(encode(shifted(record, self.offset_ns)), sequence)
        ring.tell(part, self.offset_ns)
        if part.is_gone:
            self._part_with(part.generation)

    def _begin(self, part: RingPart) -> MirrorRing | None:
        """The mirror of a ring that has none yet; None for one that has ended, and where none can be had.

        What an earlier mirror has written of it is not written again: readers have it, or have taken it for over.
        """
        generation = part.generation
        if generation in self._ended or len(self._rings) >= MAX_RINGS:
            return None
        path = self._run_dir / f"{part.role}@{self.host}.ring"
        try:
            ring = MirrorRing(path, part, self.host, self._before.get(generation, 0), self.offset_ns)
        except RingError as error:
            _remember(self._ended, generation, part.next_sequence)
            _logger.warning("a ring of %s is left out: %s", self.host, error)
            return None
        self._prune(part.role)
        self._rings[generation] = ring
        return ring

    def _part_with(self, generation: int) -> None:
        ring = self._rings.pop(generation)
        _remember(self._ended, generation, ring.next_sequence)
        ring.close()

    def _look(self) -> None:
        """Find what an earlier mirror of this host has written."""
        for path in sorted(self._run_dir.glob(f"*@{self.host}.*ring"))[:MAX_PAST_RINGS]:
            with contextlib.suppress(RingError, OSError), RingReader(path) as reader:
                header = reader.header()
                if header.host != self.host:
                    continue
                origin, end = header.origin_generation, header.origin_sequence + header.sequence
                if header.closed_at:
                    _remember(self._ended, origin, end)
                _remember(self._before, origin, max(end, self._before.get(origin, 0)))

    def _prune(self, role: str) -> None:
        """Remove the oldest mirrors of dead processes of a role: their numbers do not tell, their change does."""
        old: list[tuple[int, Path]] = []
        with contextlib.suppress(OSError):
            for path in self._run_dir.glob(f"{role}@{self.host}.*.ring"):
                old.append((path.stat().st_ctime_ns, path))
        for _, path in sorted(old)[:-NUM_KEPT]:
            path.unlink(missing_ok=True)


def _remember(sequences: OrderedDict[int, int], generation: int, next_sequence: int) -> None:
    sequences[generation] = next_sequence
    if len(sequences) > MAX_PAST_RINGS:
        sequences.popitem(last=False)

"""What the rings of a run say, read as anybody may read them: while it lives, and after it has died."""

from pathlib import Path

from vllm_obs.telemetry.record_codec import RecordDecoder
from vllm_obs.telemetry.records import Record
from vllm_obs.telemetry.ring_reader import RingReader


def only_run(base: Path) -> Path:
    """The one run directory under `base`."""
    (run,) = (path for path in base.iterdir() if path.is_dir())
    return run


def records_of(run: Path, role: str) -> list[Record]:
    """Every record in a role's ring, oldest first; none may be lost or unreadable."""
    decoder, records = RecordDecoder(), []
    with RingReader(run / f"{role}.ring") as reader:
        while frames := reader.read():
            records += [decoder.decode(frame.payload) for frame in frames]
        assert (reader.num_lost, reader.num_torn, decoder.num_undecodable, decoder.num_unknown) == (0, 0, 0, 0)
    return [record for record in records if record is not None]

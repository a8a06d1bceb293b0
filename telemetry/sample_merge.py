"""The files that a profile by samples leaves for people: all its processes in one, by role and apart."""

import logging
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from vllm_obs.telemetry.sample_collapsed import collapsed_text, ran_text
from vllm_obs.telemetry.sample_file import SUFFIX, SampleFileError, read_samples
from vllm_obs.telemetry.sample_set import SampleSet
from vllm_obs.telemetry.sample_table import sample_table
from vllm_obs.telemetry.speedscope import speedscope_file

SPEEDSCOPE = "merged.speedscope.json"
COLLAPSED = "merged.collapsed.txt"
COLLAPSED_RAN = "merged.ran.collapsed.txt"
COLLAPSED_APART = "processes.collapsed.txt"
TABLE = "samples.table.json"
MERGED = (SPEEDSCOPE, COLLAPSED, COLLAPSED_RAN, COLLAPSED_APART, TABLE)
MAX_PROCESSES = 256
MAX_TABLE_BYTES = 4 << 20

_logger = logging.getLogger(__name__)


class MergeNote(NamedTuple):
    """What is said of a profile: who sampled and why, and which roles did not answer in time."""

    profile: str
    sampler: str
    says: str
    missing: list[str]
    version: str = ""


def read_all(directory: Path) -> list[SampleSet]:
    """The samples of every process of a profile, by role; a file that cannot be used is left out and logged."""
    sets: list[SampleSet] = []
    for path in sorted(directory.glob(f"*{SUFFIX}"))[:MAX_PROCESSES]:
        try:
            sets.append(read_samples(path))
        except (SampleFileError, OSError) as error:
            _logger.warning("%s", error)
    return sets


def merge(directory: Path, note: MergeNote) -> dict[str, Any]:
    """Write the merged files of a profile beside those of its processes; the table's content. Raises OSError."""
    sets = read_all(directory)
    table = {
        "profile": note.profile,
        "sampler": note.sampler,
        "says": note.says,
        "missing": note.missing,
        "roles": sample_table(sets),
    }
    exporter = f"vllm-obs@{note.version}" if note.version else "vllm-obs"
    _write(directory / SPEEDSCOPE, orjson.dumps(speedscope_file(note.profile, sets, exporter)))
    _write(directory / COLLAPSED, collapsed_text(sets).encode())
    _write(directory / COLLAPSED_RAN, ran_text(sets).encode())
    _write(directory / COLLAPSED_APART, collapsed_text(sets, by_role=False).encode())
    _write(directory / TABLE, orjson.dumps(table))
    return table


def read_table(directory: Path) -> dict[str, Any] | None:
    """The table of a profile that is merged; None of one that is not yet, or whose table cannot be read.

    Its `roles` are those of `sample_table`; `sampler` and `says` tell who sampled and why, `missing` who did not
    answer.
    """
    path = directory / TABLE
    try:
        if path.stat().st_size > MAX_TABLE_BYTES:
            return None
        table = orjson.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return table if isinstance(table, dict) and isinstance(table.get("roles"), list) else None


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all, readable by this user alone."""
    partial = path.with_name(f".{path.name}")
    partial.touch(mode=0o600)
    partial.write_bytes(content)
    partial.replace(path)

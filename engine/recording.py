"""Which recorder a process keeps its facts with, chosen once from the configuration."""

from pathlib import Path

from vllm_obs.engine.config import VllmConfig
from vllm_obs.telemetry.flight_recorder import ENGINE_RING_BYTES, open_recorder
from vllm_obs.telemetry.recorder import MemoryRecorder, NullRecorder, ProcessRecorder

KEPT_RECORDS = 4096
"""A few megabytes at most, so that a process which runs for long does not look as if it leaked."""


def make_recorder(config: VllmConfig, role: str, ring_bytes: int = ENGINE_RING_BYTES) -> ProcessRecorder:
    """The recorder this configuration asks for, for the process of that role.

    A ring lies in the run directory as ROLE.ring, `ring_bytes` long; where there is no directory it is memory.
    """
    recorder = config.observability.recorder
    if recorder == "null":
        return NullRecorder()
    if recorder == "ring" and config.run_dir:
        return open_recorder(Path(config.run_dir) / f"{role}.ring", role, ring_bytes)
    return MemoryRecorder(KEPT_RECORDS)

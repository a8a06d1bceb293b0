"""Which recorder a process keeps its facts with, chosen once from the configuration."""

from vllm_obs.engine.config import ObservabilityConfig
from vllm_obs.telemetry.recorder import MemoryRecorder, NullRecorder, Recorder

KEPT_RECORDS = 4096
"""A few megabytes at most, so that a server which runs for long does not look as if it leaked."""


def make_recorder(config: ObservabilityConfig) -> Recorder:
    """The recorder this configuration asks for."""
    return NullRecorder() if config.recorder == "null" else MemoryRecorder(KEPT_RECORDS)

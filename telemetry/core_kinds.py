"""CORE_KINDS: the records that an engine's core writes about itself, and that its EngineState takes in."""

from vllm_obs.telemetry.records import (
    BlocksCached,
    BlocksChanged,
    BlocksKeyframe,
    EngineDescribed,
    EngineStateChanged,
    Record,
    RequestKeyframe,
    RequestReleased,
    RequestTaken,
    StepAnswered,
    StepFailed,
    StepPlanned,
)

CORE_KINDS: tuple[type[Record], ...] = (
    EngineDescribed,
    EngineStateChanged,
    RequestTaken,
    RequestReleased,
    StepPlanned,
    StepAnswered,
    StepFailed,
    BlocksChanged,
    BlocksCached,
    BlocksKeyframe,
    RequestKeyframe,
)

"""The facts a serving process records: versioned NamedTuples of plain values, never prompt or completion text.

Moments end in `_at` and are `time.monotonic_ns()`; lengths end in `_seconds`; columns of one record are parallel.
"""

from typing import Literal

from vllm_obs.telemetry.records_observer import (
    IncidentFiled,
    ProfileBegun,
    ProfileEnded,
    StallBegun,
    StallEnded,
    TelemetrySet,
)
from vllm_obs.telemetry.records_process import (
    EngineGivenUp,
    EngineRestarted,
    FrameDropped,
    GarbageSampled,
    LoopSampled,
    MemorySampled,
    ProcessExited,
    ProcessPhase,
    ProcessReady,
    ProcessStarted,
)
from vllm_obs.telemetry.records_request import (
    HttpRequestEnded,
    OutputsTaken,
    RequestEnded,
    RequestKeyframe,
    RequestReleased,
    RequestSubmitted,
    RequestTaken,
)
from vllm_obs.telemetry.records_step import (
    BlocksCached,
    BlocksChanged,
    BlocksKeyframe,
    EngineDescribed,
    EngineStateChanged,
    StepAnswered,
    StepFailed,
    StepPlanned,
    WorkerLimits,
    WorkerStep,
)

__all__ = [
    "BlocksCached",
    "BlocksChanged",
    "BlocksKeyframe",
    "EagerReason",
    "EngineDescribed",
    "EngineGivenUp",
    "EngineRestarted",
    "EngineStateChanged",
    "FrameDropped",
    "GarbageSampled",
    "HttpRequestEnded",
    "IncidentFiled",
    "LoopSampled",
    "MemorySampled",
    "OutputsTaken",
    "ProcessExited",
    "ProcessPhase",
    "ProcessReady",
    "ProcessStarted",
    "ProfileBegun",
    "ProfileEnded",
    "Record",
    "RequestEnded",
    "RequestKeyframe",
    "RequestReleased",
    "RequestSubmitted",
    "RequestTaken",
    "SCHEMA_VERSION",
    "StallBegun",
    "StallEnded",
    "StepAnswered",
    "StepFailed",
    "StepPlanned",
    "TelemetrySet",
    "WaitReason",
    "WorkerLimits",
    "WorkerStep",
]

SCHEMA_VERSION = 1

EagerReason = Literal[
    "",
    "no_gpu",
    "enforce_eager",
    "attention_backend",
    "capture_failed",
    "prompt_tokens",
    "batch_size",
]
"""Why a step did not run as a captured CUDA graph; empty where it did."""

WaitReason = Literal[
    "max_num_seqs",
    "token_budget",
    "prefill_share",
    "kv_blocks",
    "grammar",
    "lora_slots",
    "remote_kv",
    "priority",
    "paused",
    "step_in_progress",
    "head_of_line",
]
"""Why a sequence is left out of a step."""

Record = (
    ProcessStarted
    | ProcessPhase
    | ProcessReady
    | ProcessExited
    | EngineRestarted
    | EngineGivenUp
    | EngineDescribed
    | EngineStateChanged
    | RequestSubmitted
    | RequestEnded
    | OutputsTaken
    | HttpRequestEnded
    | LoopSampled
    | GarbageSampled
    | TelemetrySet
    | RequestTaken
    | RequestReleased
    | StepPlanned
    | StepAnswered
    | StepFailed
    | BlocksChanged
    | BlocksCached
    | BlocksKeyframe
    | RequestKeyframe
    | WorkerStep
    | WorkerLimits
    | MemorySampled
    | ProfileBegun
    | ProfileEnded
    | StallBegun
    | StallEnded
    | IncidentFiled
    | FrameDropped
)

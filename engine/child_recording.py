"""How a child process begins its record: that it started, and what its start has taken so far."""

import os
import time

from vllm_obs.engine.child_main import Owner
from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.recording import make_recorder
from vllm_obs.engine.startup_phases import ProcessMeter, StartupPhases
from vllm_obs.telemetry.recorder import ProcessRecorder
from vllm_obs.telemetry.records import ProcessReady, ProcessStarted
from vllm_obs.telemetry.stack_dump import register_stack_dump


def begin_recording(owner: Owner, config: VllmConfig, ring_bytes: int) -> tuple[ProcessRecorder, StartupPhases]:
    """The recorder of the process under its title, and the phases of its start, the first of which ends here."""
    recorder = make_recorder(config, owner.title, ring_bytes)
    register_stack_dump(config.run_dir, owner.title)
    recorder.record(ProcessStarted(owner.title, os.getpid(), time.monotonic_ns(), time.time_ns()))
    phases = StartupPhases(owner.title, recorder, owner.spawned_at, meter=ProcessMeter(since_start=True))
    phases.end("start process")
    return recorder, phases


def record_ready(owner: Owner, recorder: ProcessRecorder) -> None:
    """The process is about to say READY."""
    recorder.record(ProcessReady(owner.title, os.getpid(), time.monotonic_ns()))

"""The phases of a step: what the core and the slowest rank did, and what lies between."""

from vllm_obs.telemetry.records import StepAnswered, StepPlanned, WorkerStep
from vllm_obs.telemetry.step_history import StepFacts


def phase_ns(step: StepFacts) -> dict[str, int]:
    """Nanoseconds by phase, which sum to the step's time; of several ranks the one that ended last.

    Empty for a step that did not answer, or where a moment is before the one it follows.
    """
    if step.answered is None:
        return {}
    worker = max(step.workers, key=lambda record: record.sampled_at, default=None)
    phases = _core_phases(step.planned, step.answered)
    if worker is not None:
        phases |= _worker_phases(step.planned, step.answered, worker)
    return phases if min(phases.values()) >= 0 else {}


def _core_phases(planned: StepPlanned, answered: StepAnswered) -> dict[str, int]:
    return {
        "schedule": planned.schedule_ended_at - planned.schedule_begun_at,
        "update": answered.updated_at - answered.sampled_at,
        "other": answered.sampled_at - planned.schedule_ended_at,
    }


def _worker_phases(planned: StepPlanned, answered: StepAnswered, worker: WorkerStep) -> dict[str, int]:
    to_worker = worker.received_at - planned.schedule_ended_at
    between = worker.sample_begun_at - worker.forwarded_at
    back = answered.sampled_at - worker.sampled_at
    return {
        "prepare": worker.prepared_at - worker.received_at,
        "forward": worker.forwarded_at - worker.prepared_at,
        "sample": worker.sampled_at - worker.sample_begun_at,
        # Each is looked at by itself: a negative one must not hide in the sum.
        "other": to_worker + between + back if min(to_worker, between, back) >= 0 else -1,
    }

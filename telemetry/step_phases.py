"""The phases of a step: what the core and the slowest rank did, and what lies between."""

from operator import attrgetter

from vllm_obs.telemetry.records import StepAnswered, StepPlanned, WorkerStep
from vllm_obs.telemetry.step_history import StepFacts

_SAMPLED = attrgetter("sampled_at")


def phase_ns(step: StepFacts) -> dict[str, int]:
    """Nanoseconds by phase, which sum to the step's time; of several ranks the one that ended last.

    The forward pass of a pipeline is from the first stage's beginning to the last one's end, with what lies
    between stages. Empty for a step that did not answer, or where a moment is before the one it follows.
    """
    if step.answered is None:
        return {}
    phases = _core_phases(step.planned, step.answered)
    if stages := step.stages:
        phases |= _worker_phases(step.planned, step.answered, slowest_way(stages))
    return phases if min(phases.values()) >= 0 else {}


def slowest_way(stages: list[list[WorkerStep]]) -> WorkerStep:
    """The slowest ranks as if they were one: it takes and prepares in the first stage, samples in the last."""
    last = max(stages[-1], key=_SAMPLED)
    if len(stages) == 1:
        return last
    first = max(stages[0], key=_SAMPLED)
    return last._replace(received_at=first.received_at, prepared_at=first.prepared_at)


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

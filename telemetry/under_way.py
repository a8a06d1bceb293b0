"""The step that an engine is in: planned, and not answered yet."""

from typing import Any

from vllm_obs.telemetry.engine_state import EngineState
from vllm_obs.telemetry.step_history import StepFacts


def step_under_way(engine: EngineState) -> StepFacts | None:
    """The oldest step that was planned and is not over; None where the engine runs nobody now, or is gone.

    Answers come in the order of plans: what was planned before the last answer ended unheard.
    """
    answered = engine.last_answered.step if engine.last_answered is not None else -1
    found = (step for step in engine.open_steps.values() if not step.is_over and step.step > answered)
    return min(found, key=lambda step: step.step, default=None)


def under_way_view(engine: EngineState) -> dict[str, Any] | None:
    """That step as the inspector has it: since when (monotonic ns), with how many, and the levels at its plan."""
    step = step_under_way(engine)
    if step is None:
        return None
    planned = step.planned
    return {
        "step": step.step,
        "begun_at": planned.schedule_begun_at,
        "num_requests": len(planned.request_ids),
        "num_running": planned.num_running,
        "num_waiting": planned.num_waiting,
        "num_active": planned.num_active_blocks,
        "num_cached": planned.num_cached_blocks,
        "num_free": planned.num_free_blocks,
    }

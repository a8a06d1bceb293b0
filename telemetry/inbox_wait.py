"""Tells which part of a sequence's way to a core that has not taken it was waiting for a step to end."""

from collections.abc import Iterable

from vllm_obs.telemetry.stages import Interval, append_interval
from vllm_obs.telemetry.step_history import StepHistory
from vllm_obs.telemetry.waiting_line import FIRST_LOOK


def inbox_intervals(intervals: Iterable[Interval], submitted_at: int, steps: StepHistory) -> list[Interval]:
    """A ledger's intervals with its `submit` cut where the engine was inside a step, after it was sent."""
    found: list[Interval] = []
    for interval in intervals:
        if interval.stage == "submit" and not interval.reason:
            _append_cut(found, interval, submitted_at, steps)
        else:
            append_interval(found, interval)
    return found


def _append_cut(found: list[Interval], interval: Interval, submitted_at: int, steps: StepHistory) -> None:
    at = interval.begun_at
    for _, begun_at, ended_at in steps.within(max(at, submitted_at), interval.ended_at):
        if ended_at > at:
            begun_at = max(at, begun_at)
            append_interval(found, Interval("submit", at, begun_at, ""))
            append_interval(found, Interval("submit", begun_at, ended_at, FIRST_LOOK))
            at = ended_at
    append_interval(found, Interval("submit", at, interval.ended_at, ""))

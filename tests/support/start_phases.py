"""Which phases of a start are within no other."""

from collections.abc import Sequence

from vllm_obs.telemetry.records import ProcessPhase


def outermost(phases: Sequence[ProcessPhase]) -> list[ProcessPhase]:
    """Phases that are no part of another, in order; the parts of a phase are recorded before it."""
    return [phase for number, phase in enumerate(phases) if not _is_part(phase, phases[number + 1 :])]


def _is_part(inner: ProcessPhase, later: Sequence[ProcessPhase]) -> bool:
    return any(outer.begun_at <= inner.begun_at and inner.ended_at <= outer.ended_at for outer in later)

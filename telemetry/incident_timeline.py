"""The last seconds of an incident, event by event, for people."""

from typing import Any, NamedTuple

from vllm_obs.telemetry.explain_words import count, duration
from vllm_obs.telemetry.incident_finding import Finding
from vllm_obs.telemetry.incident_words import doing, end_line
from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.ring_header import RingHeader

NUM_STEPS = 4
"""The last steps are events of their own."""


class Event(NamedTuple):
    """Something at a moment (monotonic ns)."""

    at: int
    says: str


def timeline(
    finding: Finding, steps: list[dict[str, Any]], ledgers: list[SequenceLedger], header: RingHeader | None
) -> list[dict[str, Any]]:
    """What happened last, in order; `steps` are rows as the incident keeps them."""
    events = [_step(row) for row in steps[-NUM_STEPS:]]
    events += [
        Event(failed.record.failed_at, f"step {failed.record.step} failed with {failed.error_type}")
        for failed in finding.failed
    ]
    events += [Event(end.ended_at, f"{end_line(end)}{_seen(end.is_recorded)}") for end in finding.ends]
    if finding.stall is not None:
        events.append(Event(finding.stall.stuck_at, f"{finding.role} moved for the last time"))
        events.append(Event(finding.stall.noticed_at, "the watchdog noticed"))
    if header is not None:
        words = doing(header).strip() or header.activity.label
        events.append(Event(header.activity_at, f"{finding.role} last told what it does: {words}"))
    events += _endings(finding.happened_at, ledgers)
    return [{"at": event.at, "says": event.says} for event in sorted(events) if event.at]


def _step(row: dict[str, Any]) -> Event:
    what = f"step {row['step']} of engine {row['engine']}: {count(row['num_requests'], 'request')}, "
    what += count(row["num_tokens"], "token")
    begun_at = row["schedule_begun_at"]
    if row["updated_at"]:
        return Event(begun_at, f"{what}; took {duration(row['updated_at'] - begun_at)}")
    return Event(begun_at, what if row["failed"] or not row["num_requests"] else f"{what}; no answer")


def _seen(is_recorded: bool) -> str:
    return "; its owner saw it" if is_recorded else ""


def _endings(at: int, ledgers: list[SequenceLedger]) -> list[Event]:
    """When the requests that were open got their endings."""
    ended = [ledger.ended for ledger in ledgers if ledger.ended is not None]
    errors = sorted(end.ended_at for end in ended if end.finish_reason in ("error", "abort"))
    if not errors:
        return []
    return [Event(errors[-1], f"{count(len(errors), 'request')} had been ended with an error or aborted")]

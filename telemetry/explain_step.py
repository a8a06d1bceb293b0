"""Explains what an engine was busy with meanwhile: the steps waited for in the inbox, and one that took long."""

from collections.abc import Sequence

from vllm_obs.telemetry.explain_words import count, duration
from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.stages import Interval
from vllm_obs.telemetry.step_history import StepFacts, StepHistory, StepSpan

MIN_STEP_SHARE = 0.5
"""A step that took this much of a sequence's time is told of."""
LONG_NS = 2 * 10**9
"""And so is one that has not answered for so long, or an engine that has begun none."""

_IN_INBOX = "waiting in the engine's inbox"


def inbox_words(intervals: Sequence[Interval], steps: StepHistory | None) -> str:
    """What a sequence waited for before the core took it."""
    found = _inbox_steps(intervals, steps)
    if not found:
        return f"{_IN_INBOX} for the step in progress"
    first, last = found[0].step, found[-1].step
    which = f"step {first}" if first == last else f"steps {first} to {last}"
    num_tokens = sum(sum(step.planned.num_scheduled_tokens) for step in found)
    words = f"{_IN_INBOX} while {which} computed {count(num_tokens, 'token')}"
    longest = _longest_prompt(found)
    return f"{words}, {longest[1]} of them of request {longest[0]}'s prompt" if longest else words


def step_sentence(ledger: SequenceLedger, intervals: Sequence[Interval], steps: StepHistory) -> str:
    """The one step that took most of a sequence's time, or that does not answer; empty if there is none."""
    if not intervals:
        return ""
    begun_at, ended_at = intervals[0].begun_at, intervals[-1].ended_at
    spans = steps.within(begun_at, ended_at)
    is_live = ledger.state != "ended"
    if is_live and spans and not spans[-1].step.is_over and _is_long(spans[-1].num_ns, ended_at - begun_at):
        return _open_sentence(spans[-1].step, ended_at)
    if is_live and (idle := _idle_sentence(ledger, steps, ended_at)):
        return idle
    longest = max(spans, key=lambda span: span.num_ns, default=None)
    if longest is None or longest.num_ns < MIN_STEP_SHARE * (ended_at - begun_at):
        return ""
    named = _inbox_steps(intervals, steps)
    return "" if named == [longest.step] else _long_sentence(longest)


def _open_sentence(step: StepFacts, now: int) -> str:
    length = duration(now - step.planned.schedule_begun_at)
    return f"Step {step.step} has not answered for {length}; it computes {_work(step)}."


def _long_sentence(span: StepSpan) -> str:
    step = span.step
    if not step.is_over:
        return f"Step {step.step}, which took {duration(span.num_ns)} of it, did not answer: it had {_work(step)}."
    verb = "failed on" if step.failed is not None else "computed"
    return f"Step {step.step} alone took {duration(span.num_ns)} of it: it {verb} {_work(step)}."


def _idle_sentence(ledger: SequenceLedger, steps: StepHistory, now: int) -> str:
    """An engine that is between two steps and should not be; one that is paused may."""
    last = steps.last
    if last is None or not last.is_over or ledger.reason == "paused":
        return ""
    idle_ns = now - max(last.over_at, ledger.since)
    return f"The engine has begun no step for {duration(idle_ns)}." if idle_ns >= LONG_NS else ""


def _is_long(num_ns: int, total_ns: int) -> bool:
    return num_ns >= LONG_NS or num_ns >= MIN_STEP_SHARE * total_ns


def _work(step: StepFacts) -> str:
    planned = step.planned
    num_tokens = sum(planned.num_scheduled_tokens)
    words = f"{count(num_tokens, 'token')} of {count(len(planned.request_ids), 'request')}"
    longest = _longest_prompt([step])
    if longest is None or len(planned.request_ids) == 1:
        return words
    return f"{words}, {longest[1]} of them of request {longest[0]}'s prompt"


def _longest_prompt(steps: Sequence[StepFacts]) -> tuple[str, int] | None:
    """The request of whose prompt most was computed, and how much. A row of one token decodes."""
    sums: dict[str, int] = {}
    for step in steps:
        planned = step.planned
        for request_id, num_tokens in zip(planned.request_ids, planned.num_scheduled_tokens, strict=False):
            if num_tokens > 1:
                sums[request_id] = sums.get(request_id, 0) + num_tokens
    return max(sums.items(), key=lambda item: item[1], default=None)


def _inbox_steps(intervals: Sequence[Interval], steps: StepHistory | None) -> list[StepFacts]:
    waits = [interval for interval in intervals if interval.stage == "submit" and interval.reason]
    if steps is None or not waits:
        return []
    return [span.step for span in steps.within(waits[0].begun_at, waits[-1].ended_at)]

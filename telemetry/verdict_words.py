"""The verdict as a document: one word, one sentence, the findings behind it, and what cannot be told."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from vllm_obs.telemetry.ddsketch import DDSketch
from vllm_obs.telemetry.explain_words import count
from vllm_obs.telemetry.rate_windows import WINDOWS
from vllm_obs.telemetry.verdict_names import CANNOT_TELL, IDLE, WELL
from vllm_obs.telemetry.verdict_window import Finding, WindowFacts

MIN_SECONDS = 3.0
"""A window that covers less than this says nothing."""
SEVERE_SHARE = 0.5
"""From this share of the time on any finding is severe."""


class LostRecords(Protocol):
    """What the document says of records that were lost."""

    @property
    def role(self) -> str:
        """Whose they were."""

    @property
    def num(self) -> int:
        """How many."""


def verdict_document(
    window: str, facts: Sequence[WindowFacts], findings: Sequence[Finding], losses: Sequence[LostRecords]
) -> dict[str, Any]:
    """All of it in plain values.

    `word` is the first finding's name, or idle, well or cannot_tell; `severity` is none, warning or severe.
    """
    doubts = list(_doubts(facts, losses))
    word, says = _headline(facts, findings, doubts)
    return {
        "window": window,
        "window_seconds": WINDOWS[window],
        "covered_seconds": max((each.seconds for each in facts), default=0.0),
        "word": word,
        "severity": _severity(findings),
        "says": says,
        "findings": [finding.document() for finding in findings],
        "cannot_tell": doubts,
        "limits": _limits(facts),
        "floor": floor_document(facts),
    }


def floor_document(facts: Iterable[WindowFacts]) -> dict[str, Any]:
    """Observed over floor of the window's steps, over all engines; None while no floor is known."""
    ratios = DDSketch()
    for each in facts:
        ratios.merge(each.ratios)
    if not ratios.num_observed:
        return {
            "num_steps": 0,
            "p50": None,
            "worst": None,
            "says": "The least time for this work is not known yet.",
        }
    p50, worst = ratios.quantile(0.5), ratios.greatest
    says = (
        f"Half of the steps took at most {p50:.2f} times the least time that as much work took here; the worst "
        f"took {worst:.2f} times."
    )
    return {"num_steps": ratios.num_observed, "p50": round(p50, 4), "worst": round(worst, 4), "says": says}


def _headline(facts: Sequence[WindowFacts], findings: Sequence[Finding], doubts: Sequence[str]) -> tuple[str, str]:
    if findings:
        first, *rest = findings
        also = f" Also: {', '.join(finding.name for finding in rest)}." if rest else ""
        return first.name, f"{_where(facts, first)}{first.says}{also}"
    if doubts:
        return CANNOT_TELL, f"Cannot tell: {doubts[0]}."
    if not any(each.sums["steps"] for each in facts):
        return IDLE, "Idle: no request in this time."
    return WELL, "Nothing holds requests back."


def _where(facts: Sequence[WindowFacts], finding: Finding) -> str:
    """Which engines, where there are several."""
    if len(facts) < 2 or not finding.engines:
        return ""
    noun = "Engine" if len(finding.engines) == 1 else "Engines"
    return f"{noun} {', '.join(finding.engines)}: "


def _doubts(facts: Sequence[WindowFacts], losses: Sequence[LostRecords]) -> Iterable[str]:
    seconds = max((each.seconds for each in facts), default=0.0)
    if seconds < MIN_SECONDS:
        yield f"this run has been watched for {seconds:.0f} s, and at least {MIN_SECONDS:.0f} s are needed"
    for each in facts:
        num_live = each.num_running + each.num_waiting
        if num_live and not each.sums["steps"] and not each.sums["paused_ns"]:
            yield f"engine {each.engine} has {count(num_live, 'request')} and no step has ended in this time"
        if each.described is None and each.sums["steps"]:
            yield f"what limits engine {each.engine} has is not known: the record in which it told was lost"
    if losses:
        roles = sorted({loss.role for loss in losses})
        yield f"{sum(loss.num for loss in losses)} records of {', '.join(roles)} were lost in this time"


def _severity(findings: Sequence[Finding]) -> str:
    if not findings:
        return "none"
    is_severe = any(finding.is_severe or finding.share >= SEVERE_SHARE for finding in findings)
    return "severe" if is_severe else "warning"


def _limits(facts: Sequence[WindowFacts]) -> dict[str, dict[str, float]]:
    """By engine, the seconds of step time by binding limit, the longest first."""
    return {each.engine: each.limit_seconds() for each in facts}

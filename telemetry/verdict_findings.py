"""Which findings hold for a window of one engine, and those of several engines as one list."""

from collections.abc import Callable

from vllm_obs.telemetry.verdict_first_tokens import late_first_tokens
from vllm_obs.telemetry.verdict_load import kv_pressure, long_prefill, max_num_seqs, preemption_storm, token_budget
from vllm_obs.telemetry.verdict_names import FINDINGS
from vllm_obs.telemetry.verdict_stalls import slow_frontend, stalled_rank, worker_slow
from vllm_obs.telemetry.verdict_waits import paused, waits
from vllm_obs.telemetry.verdict_window import Finding, WindowFacts

_RULES: tuple[Callable[[WindowFacts], Finding | None], ...] = (
    stalled_rank,
    paused,
    slow_frontend,
    worker_slow,
)
_LIMIT_RULES: tuple[Callable[[WindowFacts], Finding | None], ...] = (
    preemption_storm,
    kv_pressure,
    max_num_seqs,
    token_budget,
    long_prefill,
)
"""They advise by how large a limit is, so they need an engine that has said so."""


def findings_of(facts: WindowFacts) -> list[Finding]:
    """What holds for one engine's window, in the order of FINDINGS; each names the engine."""
    rules = _RULES + _LIMIT_RULES if facts.described is not None else _RULES
    found = [finding for rule in rules if (finding := rule(facts)) is not None] + waits(facts)
    if not found and (late := late_first_tokens(facts)) is not None:
        found = [late]
    return sorted_findings([finding._replace(engines=(facts.engine,)) for finding in found])


def joined(findings: list[Finding]) -> list[Finding]:
    """Those of several engines as one list: of each name the one with the greatest share, with all its engines."""
    by_name: dict[str, list[Finding]] = {}
    for finding in findings:
        by_name.setdefault(finding.name, []).append(finding)
    joined_ones: list[Finding] = []
    for same in by_name.values():
        worst = max(same, key=lambda finding: finding.share)
        engines = tuple(sorted(engine for finding in same for engine in finding.engines))
        is_severe = any(finding.is_severe for finding in same)
        is_past = all(finding.is_past for finding in same)
        joined_ones.append(worst._replace(engines=engines, is_severe=is_severe, is_past=is_past))
    return sorted_findings(joined_ones)


def sorted_findings(findings: list[Finding]) -> list[Finding]:
    """The weightiest first."""
    return sorted(findings, key=lambda finding: FINDINGS.index(finding.name))

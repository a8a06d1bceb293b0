"""Judgement: whether one sequence kept to the objectives, and by how much and where it did not."""

from typing import NamedTuple

from vllm_obs.telemetry.economics_costs import NO_ACCOUNT
from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.records import RequestEnded
from vllm_obs.telemetry.sequence_times import SequenceTimes
from vllm_obs.telemetry.slo_targets import SloTargets
from vllm_obs.telemetry.stages import ns_by_stage

ERROR = "error"
"""What a sequence failed by that ended with an error."""
NOT_COUNTED = "abort"
"""Its client left: that is not the server's doing."""
NS = 1e9


class Miss(NamedTuple):
    """A sequence that did not keep to an objective: the one it missed by most, relative to its limit.

    `measured` and `limit` are seconds (0 for an error), `stage` is where most of the time went that counts for it.
    `external_id` is the client's label, `account` that of its API key.
    """

    request_id: str
    ended_at: int
    objective: str
    measured: float
    limit: float
    stage: str
    stage_ns: int
    external_id: str = ""
    account: str = ""

    @property
    def ratio(self) -> float:
        """How many times the limit it took; an error is worse than anything."""
        return self.measured / self.limit if self.limit else float("inf")


class Judgement(NamedTuple):
    """`missed` are all objectives that were not kept; `worst` is None where all were."""

    missed: tuple[str, ...]
    worst: Miss | None


def judge(ledger: SequenceLedger, targets: SloTargets) -> Judgement | None:
    """Judge a closed sequence; None for one that is not counted.

    One whose API server died has ended with an error. What a sequence has none of (a second token, any token) it
    has kept.
    """
    ended = ledger.ended
    if ended is not None and ended.finish_reason == NOT_COUNTED:
        return None
    if ended is None or ended.finish_reason == ERROR:
        return Judgement((ERROR,), _miss(ledger, ERROR, 0.0, 0.0))
    limits, measured = targets.given(), _measured(ledger, ended)
    ratios = {name: measured[name] / limit for name, limit in limits.items()}
    missed = tuple(name for name, ratio in ratios.items() if ratio > 1)
    if not missed:
        return Judgement((), None)
    worst = max(missed, key=lambda name: ratios[name])
    return Judgement(missed, _miss(ledger, worst, measured[worst], limits[worst]))


def _measured(ledger: SequenceLedger, ended: RequestEnded) -> dict[str, float]:
    times = SequenceTimes.of(ledger, ended)
    first_at = ended.first_token_at
    ttft = max(0, first_at - ledger.submitted.received_at) / NS if first_at else 0.0
    return {"ttft": ttft, "tpot": times.time_per_output_token, "e2e": times.e2e}


def _miss(ledger: SequenceLedger, objective: str, measured: float, limit: float) -> Miss:
    begun_at, ended_at = _span(ledger, objective)
    cut = (
        interval._replace(begun_at=max(begun_at, interval.begun_at), ended_at=min(ended_at, interval.ended_at))
        for interval in ledger.intervals
        if interval.ended_at > begun_at and interval.begun_at < ended_at
    )
    stages = ns_by_stage(cut)
    stage = max(stages, key=lambda name: stages[name])
    who = (ledger.submitted.external_id, ledger.submitted.account or NO_ACCOUNT)
    return Miss(ledger.request_id, ledger.ended_at, objective, measured, limit, stage, stages[stage], *who)


def _span(ledger: SequenceLedger, objective: str) -> tuple[int, int]:
    """The time that counts for an objective."""
    begun_at, ended_at, ended = ledger.submitted.received_at, ledger.ended_at, ledger.ended
    if ended is not None and objective == "ttft":
        return begun_at, ended.first_token_at
    if ended is not None and objective == "tpot":
        return ended.first_token_at, ended.last_token_at
    return begun_at, ended_at

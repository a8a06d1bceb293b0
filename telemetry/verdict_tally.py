"""StepTally: what a verdict counts of one engine's steps, as sums by name, and the steps that stood out."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from vllm_obs.telemetry.binding_limit import PREEMPTION, binding_limit
from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.records import EngineDescribed, StepPlanned, WorkerStep
from vllm_obs.telemetry.step_history import StepFacts

STALL_FACTOR = 5.0
"""A step that takes so many times what its like took, and STALL_NS longer, stood still."""
STALL_NS = 1_000_000_000
LAG_NS = 500_000_000
"""A rank that ends its part of a step so long after the others, and LAG_FACTOR times as late, held them up."""
LAG_FACTOR = 3.0
HICCUP_NS = 250_000_000
"""Of a lag only so much counts, or what the other ranks took: one late step makes no rank that is always late."""
LONG_PROMPT_BUDGETS = 6.0
"""A prompt of so many token budgets is a very long one: no step can take it in whole."""
MAX_STALLS = 256
MAX_PREEMPTED = 65_536
MAX_NOTES = 1024
LIMIT, LAG, STALL = "limit/", "lag/", "stall/"
"""Sums by limit (ns) and by rank (ns) have names that begin so."""
LOOP_LAG, LOOP_SAMPLES = "loop_lag_seconds/", "loop_samples/"
"""And those by API server."""
CONDITIONS = (
    "kv_ns",
    "fresh_kv_ns",
    "preempted_wait_ns",
    "storm_ns",
    "budget_ns",
    "seqs_ns",
    "long_ns",
    *(f"{LIMIT}{limit}" for limit in ("waiting_on_grammar", "waiting_on_remote_kv", "lora_slots", "priority")),
)
"""Sums of time in which something held; of each there are the MEANS of that time alone."""
_CONDITIONS = frozenset(CONDITIONS)
MEANS = ("waiting_ns", "running_ns", "active_ns", "tokens", "steps")

FindSequence = Callable[[str], SequenceLedger | None]


class StalledStep(NamedTuple):
    """A step that took far longer than its like. `rank` is the one that ended last; -1 where no rank told."""

    engine: str
    step: int
    rank: int
    begun_at: int
    ended_at: int
    lost_ns: int
    expected_ns: int


class RankLag(NamedTuple):
    """The rank that came last (-1: no rank told), and how long after the one before it."""

    rank: int
    num_ns: int


class _Rows(NamedTuple):
    """A plan's tokens by what they are for."""

    num_decodes: int
    num_prompt_tokens: int
    num_long_tokens: int
    num_recomputed_tokens: int


@dataclass
class StepTally:
    """Of one engine. `find` gives a sequence's ledger; `stalls` are the newest steps that stood still."""

    find: FindSequence
    described: EngineDescribed | None = None
    stalls: deque[StalledStep] = field(default_factory=lambda: deque(maxlen=MAX_STALLS))
    _preempted: dict[str, None] = field(default_factory=dict)
    _too_large: dict[int, None] = field(default_factory=dict)
    _over_at: int = 0

    @property
    def budget(self) -> int:
        """Tokens a step may compute, 0 where that is not known."""
        return self.described.max_num_batched_tokens if self.described is not None else 0

    def released(self, request_id: str) -> None:
        """A sequence left, perhaps while it waited to run again."""
        self._preempted.pop(request_id, None)

    def begun_at(self, step: StepFacts) -> int:
        """When a step began, or the one before it was over: of steps in flight together each has its own time."""
        return max(step.planned.schedule_begun_at, self._over_at)

    def note_head(self, planned: StepPlanned, head: SequenceLedger | None) -> None:
        """Who was the queue's head after a plan, to be told before `add`."""
        if head is None or self.described is None:
            return
        num_needed = -(-(head.submitted.num_prompt_tokens + head.num_output_tokens) // self.described.block_size)
        if head.num_preemptions:
            num_needed += planned.num_running
        if num_needed > planned.num_free_blocks + planned.num_cached_blocks:
            self._too_large[planned.step] = None
            if len(self._too_large) > MAX_NOTES:
                del self._too_large[next(iter(self._too_large))]

    def add(self, step: StepFacts, expected_ns: int | None) -> dict[str, float]:
        """The sums of a step that is over and had rows; `expected_ns` is what its workers need at best."""
        planned = step.planned
        num_preempted_waiting = self._follow_preempted(planned)
        begun_at = self.begun_at(step)
        over_at = step.over_at
        num_ns = max(0, over_at - begun_at)
        self._over_at = max(self._over_at, over_at)
        lag, taken_ns = step_lag(step), step.worker_ns
        lost_ns = 0
        if taken_ns > STALL_NS:
            lost_ns = min(num_ns, self._lost_ns(step, taken_ns, lag, expected_ns))
        used_ns = num_ns - lost_ns
        head_fits = step.step not in self._too_large
        self._too_large.pop(step.step, None)
        step.limit = binding_limit(planned, self.budget, head_fits)
        sums: dict[str, float] = {
            "steps": 1,
            "ns": num_ns,
            "used_ns": used_ns,
            "stalled_ns": lost_ns,
            f"{LIMIT}{step.limit}": used_ns,
            "waiting_ns": planned.num_waiting * used_ns,
            "running_ns": planned.num_running * used_ns,
            "active_ns": planned.num_active_blocks * used_ns,
            "preempted": len(planned.preempted_ids),
        }
        self._add_waits(sums, step, num_preempted_waiting)
        self._add_rows(sums, step)
        _add_means(sums)
        if lost_ns:
            sums[f"{STALL}{lag.rank}"] = lost_ns
        if len(step.workers) > len(step.stages):
            others_ns = taken_ns - lag.num_ns
            counted_ns = min(lag.num_ns, max(HICCUP_NS, others_ns))
            sums["ranks_ns"], sums[f"{LAG}{lag.rank}"] = others_ns + counted_ns, counted_ns
        return sums

    @staticmethod
    def _add_waits(sums: dict[str, float], step: StepFacts, num_preempted_waiting: int) -> None:
        used_ns = sums["used_ns"]
        if num_preempted_waiting:
            sums["preempted_wait_ns"] = used_ns
            sums["preempted_waiting_ns"] = num_preempted_waiting * used_ns
        elif step.limit == "kv_blocks":
            sums["fresh_kv_ns"] = used_ns
        if step.limit in ("kv_blocks", PREEMPTION):
            sums["kv_ns"] = used_ns
        if step.planned.head_reason == "max_num_seqs":
            sums["seqs_ns"] = used_ns

    def _add_rows(self, sums: dict[str, float], step: StepFacts) -> None:
        planned, used_ns = step.planned, sums["used_ns"]
        rows = self._rows_of(planned)
        num_tokens = sum(planned.num_scheduled_tokens)
        sums |= {
            "tokens": num_tokens,
            "prompt_tokens": rows.num_prompt_tokens,
            "long_tokens": rows.num_long_tokens,
            "recomputed_tokens": rows.num_recomputed_tokens,
        }
        if rows.num_recomputed_tokens or "preempted_wait_ns" in sums:
            sums["storm_ns"] = used_ns
        is_long = 2 * rows.num_long_tokens > num_tokens
        if step.limit in ("token_budget", "prefill_share") and (planned.num_waiting or planned.left_out_ids):
            # A full step's time belongs to very long prompts and to the others by their tokens.
            sums["budget_ns"] = used_ns * (1 - rows.num_long_tokens / num_tokens)
        if is_long:
            sums["long_steps"], sums["long_step_ns"] = 1, used_ns
            if rows.num_decodes or planned.num_waiting:
                sums["long_ns"], sums["delayed_tokens"] = used_ns, rows.num_decodes
        elif rows.num_decodes == len(planned.request_ids):
            sums["decode_steps"], sums["decode_ns"] = 1, used_ns

    def _rows_of(self, planned: StepPlanned) -> _Rows:
        num_rows = len(planned.request_ids)
        if planned.num_scheduled_tokens.count(1) == num_rows:
            return _Rows(num_rows, 0, 0, 0)
        num_decodes = num_prompt = num_long = num_recomputed = 0
        for request_id, num_tokens in zip(planned.request_ids, planned.num_scheduled_tokens, strict=True):
            if num_tokens == 1:
                num_decodes += 1
                continue
            ledger = self.find(request_id)
            if ledger is not None and ledger.num_preemptions:
                num_recomputed += num_tokens
            elif ledger is not None and self._is_long(ledger.submitted.num_prompt_tokens):
                num_long += num_tokens
            else:
                num_prompt += num_tokens
        return _Rows(num_decodes, num_prompt, num_long, num_recomputed)

    def _is_long(self, num_prompt_tokens: int) -> bool:
        return 0 < LONG_PROMPT_BUDGETS * self.budget <= num_prompt_tokens

    def _follow_preempted(self, planned: StepPlanned) -> int:
        """How many sequences wait to run again after a plan."""
        if not planned.num_waiting:
            self._preempted.clear()
            return 0
        for request_id in planned.resumed_ids:
            self._preempted.pop(request_id, None)
        self._preempted |= dict.fromkeys(planned.preempted_ids)
        while len(self._preempted) > min(planned.num_waiting, MAX_PREEMPTED):
            del self._preempted[next(iter(self._preempted))]
        return len(self._preempted)

    def _lost_ns(self, step: StepFacts, taken_ns: int, lag: RankLag, expected_ns: int | None) -> int:
        """How long a step stood still, and a note of it."""
        if lag.num_ns > max(LAG_NS, (LAG_FACTOR - 1) * (taken_ns - lag.num_ns)):
            expected_ns = min(taken_ns - lag.num_ns, expected_ns or taken_ns)
        elif expected_ns is None or taken_ns - expected_ns < max(STALL_NS, (STALL_FACTOR - 1) * expected_ns):
            return 0
        lost_ns = taken_ns - expected_ns
        begun_at = step.planned.schedule_begun_at
        stall = StalledStep(step.engine, step.step, lag.rank, begun_at, step.over_at, lost_ns, expected_ns)
        self.stalls.append(stall)
        return lost_ns


def during(figure: str, condition: str) -> str:
    """The name of a figure's sum over the time in which a condition held."""
    return f"{figure}@{condition}"


def _add_means(sums: dict[str, float]) -> None:
    """Add what was there in the time that each condition held, so that a finding's figures are of its own time."""
    used_ns = sums["used_ns"]
    for condition in _CONDITIONS & sums.keys():
        if held_ns := sums[condition]:
            for figure in MEANS:
                sums[during(figure, condition)] = sums[figure] * held_ns / used_ns


def step_lag(step: StepFacts) -> RankLag:
    """The worst lag of a rank within its stage: stages follow one another, and who comes later is not late.

    Where each stage has one rank nobody lags; named is then the one that took longest.
    """
    if len(step.workers) == 1 and step.workers[0].forwarded_at >= step.workers[0].prepared_at:
        return RankLag(step.workers[0].rank, 0)
    stages = step.stages
    lags = [rank_lag(stage) for stage in stages if len(stage) > 1]
    return max(lags, key=lambda lag: lag.num_ns) if lags else RankLag(_longest(stages), 0)


def _longest(stages: list[list[WorkerStep]]) -> int:
    """The rank of the longest forward pass, each counted from when the stage before it was done; -1 for none."""
    rank, longest_ns, before = -1, -1, 0
    for (worker,) in stages:
        forward_ns = worker.forwarded_at - max(before, worker.prepared_at)
        if forward_ns > longest_ns:
            rank, longest_ns = worker.rank, forward_ns
        before = worker.forwarded_at
    return rank


def rank_lag(workers: Sequence[WorkerStep]) -> RankLag:
    """Which rank of a step came last to where they all come, and how long after the others.

    It is the part (taking, preparing, forward, sampling) in which the ranks were furthest apart: where ranks wait
    for one another, all are late in what follows.
    """
    if len(workers) < 2:
        return RankLag(workers[0].rank if workers else -1, 0)
    lag = RankLag(-1, -1)
    for moments in (
        [(worker.forwarded_at, worker.rank) for worker in workers],
        [(worker.prepared_at, worker.rank) for worker in workers],
        [(worker.received_at, worker.rank) for worker in workers],
        [(worker.sampled_at, worker.rank) for worker in workers],
    ):
        moments.sort()
        (before_at, _), (last_at, rank) = moments[-2:]
        if last_at - before_at > lag.num_ns:
            lag = RankLag(rank, last_at - before_at)
    return lag

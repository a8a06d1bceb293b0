"""SequenceLedger: where one sequence's wall time went, stage by stage to the nanosecond, and what it used."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from vllm_obs.telemetry.records import HttpRequestEnded, RequestEnded, RequestReleased, RequestSubmitted
from vllm_obs.telemetry.stages import Interval, append_interval, cut_intervals, ns_by_reason, ns_by_stage

MAX_STEPS = 4096
MAX_STEP_RUNS = 1024
NATURAL_ENDINGS = frozenset({"stop", "length", "repetition"})
"""Endings that came with a token; whatever else ends a sequence cuts it short."""

_STATES = {"queue": "waiting", "preempted": "preempted", "prefill": "running", "decode": "running"}
_STATES |= {"recompute": "running", "stalled": "running"}


@dataclass(slots=True)
class StepRun:
    """Consecutive steps that each ran `num_tokens` of a sequence; `num_computed` is before the first of them."""

    first_step: int
    num_steps: int
    num_tokens: int
    num_computed: int


@dataclass(slots=True)
class SequenceLedger:
    """One sequence from its submission on, growing while it lives; all moments are monotonic ns.

    `intervals` are closed ones that touch; while it lives it has been in `stage` (for `reason`) since `since`.
    `is_partial` says that records about it were lost, so that nothing it claims is exact; `is_orphan` that its
    RequestSubmitted has not come (`submitted` then holds what the core said); `is_abandoned` that its API server
    died before it had an ending. `waits`, ns by reason, are over the waiting stages and the wait in the inbox.
    """

    submitted: RequestSubmitted
    engine: str = ""
    taken_at: int = 0
    intervals: list[Interval] = field(default_factory=list)
    num_preemptions: int = 0
    num_cached_tokens: int = 0
    num_resumed_cached_tokens: int = 0
    """Prompt tokens that it never computed, because the cache had them when it came back from preemption."""
    num_recomputed_tokens: int = 0
    num_prefill_computed_tokens: int = 0
    num_computed_high: int = 0
    """The furthest it was ever computed; what it computes below that again is recomputed."""
    first_step: int = 0
    last_step: int = 0
    num_steps: int = 0
    step_runs: list[StepRun] = field(default_factory=list)
    first_token_at: int = 0
    last_token_at: int = 0
    num_output_tokens: int = 0
    """Tokens that the core sampled for it; the ending says how many of them were used."""
    peak_company: int = 0
    sum_company: int = 0
    ended: RequestEnded | None = None
    released: RequestReleased | None = None
    http: HttpRequestEnded | None = None
    stage: str = "submit"
    reason: str = ""
    since: int = 0
    active_stage: str = "prefill"
    """What it does when it runs: prefill, decode or recompute."""
    api_generation: int = 0
    """The ring of the API server that submitted it."""
    is_partial: bool = False
    is_orphan: bool = False
    is_closed: bool = False
    is_abandoned: bool = False

    @property
    def request_id(self) -> str:
        """The sequence's own id."""
        return self.submitted.request_id

    @property
    def state(self) -> str:
        """submitted, waiting, running, preempted or ended."""
        return "ended" if self.ended is not None or self.is_closed else _STATES.get(self.stage, "submitted")

    @property
    def waiting_since(self) -> int:
        """Since when it has been in the stage it is in, whatever its reasons were meanwhile."""
        since = self.since
        for interval in reversed(self.intervals):
            if interval.stage != self.stage:
                break
            since = interval.begun_at
        return since

    @property
    def is_complete(self) -> bool:
        """Whether it is closed and no record about it was lost."""
        return self.is_closed and not self.is_partial

    @property
    def ended_at(self) -> int:
        """The end of its ledger, 0 before: its HTTP reply's last byte, or its own ending if that came later."""
        if self.ended is None:
            return self.since if self.is_closed else 0
        return max(self.ended.ended_at, self.http.ended_at) if self.http is not None else self.ended.ended_at

    @property
    def latency_ns(self) -> int:
        """From the first byte received to the end (while it lives: to its last known moment)."""
        return (self.ended_at or self.since) - self.submitted.received_at

    @property
    def waits(self) -> dict[str, int]:
        """Nanoseconds of closed waiting intervals by reason."""
        return ns_by_reason(self.intervals)

    @property
    def mean_company(self) -> float:
        """How many rows its steps had on average, itself included."""
        return self.sum_company / self.num_steps if self.num_steps else 0.0

    @property
    def steps(self) -> list[tuple[int, int, int]]:
        """The last 4096 steps it ran in: (step, tokens scheduled, tokens computed before)."""
        kept: list[tuple[int, int, int]] = []
        for run in reversed(self.step_runs):
            kept += _steps_of(run)
            if len(kept) >= MAX_STEPS:
                break
        return kept[:MAX_STEPS][::-1]

    def stage_ns(self) -> dict[str, int]:
        """Nanoseconds of every stage; once it is closed they sum to `latency_ns`."""
        return ns_by_stage(self.intervals)

    def intervals_until(self, now: int) -> list[Interval]:
        """Its intervals with the one it is in, up to `now`."""
        if self.is_closed or now <= self.since:
            return list(self.intervals)
        return [*self.intervals, Interval(self.stage, self.since, now, self.reason)]

    def begin(self) -> None:
        """Write the API server's stages; from `tokenized_at` on it is on its way to the core."""
        self.intervals = list(_api_stages(self.submitted))
        self.stage, self.since = "submit", self.submitted.tokenized_at

    def adopt(self, submitted: RequestSubmitted) -> None:
        """The RequestSubmitted of an orphan has come: put the API server's stages before what the core did."""
        before = [*_api_stages(submitted)]
        first_at = self.intervals[0].begun_at if self.intervals else self.since
        append_interval(before, Interval("submit", submitted.tokenized_at, first_at, ""))
        if self.intervals:
            # What the core knows of its way begins in the same stage.
            append_interval(before, self.intervals[0])
        self.submitted, self.is_orphan = submitted, False
        self.intervals[:1] = before

    def switch(self, stage: str, at: int, reason: str = "") -> None:
        """Leave the stage it is in at this moment for another, or for another reason."""
        if (stage != self.stage or reason != self.reason) and not self.is_closed:
            append_interval(self.intervals, Interval(self.stage, self.since, at, self.reason))
            self.stage, self.reason, self.since = stage, reason, at

    def run_in(self, step: int, num_tokens: int, num_computed: int) -> None:
        """Note a step that ran it, unlike the one before."""
        runs = self.step_runs
        runs.append(StepRun(step, 1, num_tokens, num_computed))
        if len(runs) > MAX_STEP_RUNS:
            del runs[: MAX_STEP_RUNS // 2]

    def compute(self, begin: int, end: int) -> None:
        """Tokens `begin` to `end` are computed: count those that are new, that were before, that were skipped."""
        num_prompt, high = self.submitted.num_prompt_tokens, self.num_computed_high
        num_skipped = min(begin, num_prompt) - min(high, num_prompt)
        if num_skipped > 0 and self.num_preemptions:
            self.num_resumed_cached_tokens += num_skipped
        elif num_skipped > 0:
            self.num_cached_tokens += num_skipped
        self.num_recomputed_tokens += max(0, min(end, high) - begin)
        self.num_prefill_computed_tokens += max(0, min(end, num_prompt) - min(max(begin, high), num_prompt))
        self.num_computed_high = max(high, end)

    def close(self) -> None:
        """Cut it at its ending and add what came after; nothing changes it any more."""
        if self.ended is not None:
            self._finish(self.ended)
        self.is_closed = True

    def abandon(self, at: int) -> None:
        """Its API server is dead, and it gets no ending: it lasted as far as is known, until this moment."""
        self.is_abandoned = True
        if self.released is None:
            self._stop_at(max(at, self.since, self.last_token_at))
        else:
            self._stop_at(max(self.since, self.last_token_at))
            self._follow("return", max(self.since, self.released.released_at))
        # Whatever the core still computes for it is nobody's.
        self.stage, self.is_closed = "return", True

    def _finish(self, ended: RequestEnded) -> None:
        sampled_at = self._last_sampled_at(ended)
        if ended.finish_reason in NATURAL_ENDINGS and sampled_at and ended.taken_at:
            # A stop string is found while the core runs on: what counts is the last token that was used.
            self._stop_at(sampled_at)
            self._follow("return", ended.taken_at)
            self._follow("detokenize", ended.ended_at)
        else:
            self._stop_at(ended.ended_at)
        self._follow("deliver", self.ended_at)

    def _last_sampled_at(self, ended: RequestEnded) -> int:
        """When its last used token was sampled. A sequence of no tokens (scoring) has one sampled and not kept."""
        if ended.last_token_at or self.num_output_tokens or self.stage != "decode":
            return ended.last_token_at
        return self.since

    def _stop_at(self, at: int) -> None:
        if at >= self.since:
            append_interval(self.intervals, Interval(self.stage, self.since, at, self.reason))
        else:
            cut_intervals(self.intervals, at)
        self.since, self.reason = at, ""

    def _follow(self, stage: str, ended_at: int) -> None:
        append_interval(self.intervals, Interval(stage, self.since, ended_at, ""))
        self.stage, self.since = stage, ended_at


def _api_stages(submitted: RequestSubmitted) -> Iterator[Interval]:
    moments = (submitted.received_at, submitted.parsed_at, submitted.rendered_at, submitted.tokenized_at)
    for stage, begun_at, ended_at in zip(("receive", "render", "tokenize"), moments, moments[1:], strict=False):
        if begun_at != ended_at:
            yield Interval(stage, begun_at, ended_at, "")


def _steps_of(run: StepRun) -> Iterator[tuple[int, int, int]]:
    """Its steps, newest first."""
    for index in reversed(range(run.num_steps)):
        yield run.first_step + index, run.num_tokens, run.num_computed + index * run.num_tokens

"""ChargedCore: the real EngineCore under random load, who its records charge, and what really happened."""

from collections import Counter
from random import Random
from typing import Any

from ahead_executor import AheadExecutor
from fact_stream import API_SERVER, ENGINE, MODEL
from fake_executor import FakeExecutor, make_request, tiny_config
from pipelined_executor import PipelinedExecutor, pipelined

from vllm_obs.engine.core import EngineCore
from vllm_obs.engine.messages import AbortRequests, EngineCoreOutputs, FinishReason
from vllm_obs.engine.plan import StepPlan
from vllm_obs.telemetry.core_submission import unknown_submission
from vllm_obs.telemetry.economics import Economics
from vllm_obs.telemetry.recorder import MemoryRecorder
from vllm_obs.telemetry.records import Record, RequestEnded, RequestSubmitted
from vllm_obs.telemetry.run_state import RunState
from vllm_obs.telemetry.view import RecordsLost

ACCOUNTS = ("key-1", "key-2", "batch")
MAX_LIVE = 24


class AppliedRecorder(MemoryRecorder):
    """Applies every record at once, unless it is to be lost."""

    def __init__(self, state: RunState) -> None:
        super().__init__(100_000)
        self.state = state
        self.is_losing = False
        self.num_lost = 0

    def record(self, record: Record) -> None:
        """Keep it, and tell the state of it or of the gap before it."""
        super().record(record)
        if self.is_losing:
            self.num_lost += 1
            return
        if self.num_lost:
            self.state.apply(ENGINE, RecordsLost(self.num_lost))
            self.num_lost = 0
        self.state.apply(ENGINE, record)


class ChargedCore:
    """Virtual time: a step computes for a millisecond or more, everything else takes microseconds.

    `pool_ns` is the integral of the pool's own count of active blocks, `busy_ns` the time inside of `step`.
    """

    def __init__(self, seed: int, num_blocks: int = 40, num_stages: int = 1, is_ahead: bool = False) -> None:
        self.random = Random(seed)
        self.now = 10**9
        self.pool_ns = 0
        self.state = RunState()
        self.economics = Economics(self.state.engines.get, ACCOUNTS)
        self.state.add_view(self.economics)
        self.recorder = AppliedRecorder(self.state)
        make = AheadExecutor if is_ahead else FakeExecutor if num_stages == 1 else PipelinedExecutor
        self.executor = make(num_blocks, before_execute=self._compute)
        limits = tiny_config(max_num_seqs=8, max_num_batched_tokens=24, async_scheduling=is_ahead)
        config = pipelined(num_stages, limits)
        self.core: EngineCore | None = None
        self.core = EngineCore(config, self.executor, self.recorder, self.tick)
        self.endings: Counter[str] = Counter()
        self.num_failed_steps = 0
        self.num_submitted = 0
        self._live: dict[str, RequestSubmitted] = {}
        self._is_failing = False

    def tick(self) -> int:
        """The clock: some microseconds go by whenever somebody looks at it."""
        return self.pass_time(self.random.randint(500, 5_000))

    def pass_time(self, num_ns: int) -> int:
        """Let time go by with the blocks as they are."""
        if self.core is not None:
            self.pool_ns += self.core.scheduler.kv_cache.pool.num_active * num_ns
        self.now += num_ns
        return self.now

    def run(self, num_requests: int) -> None:
        """So many requests, with aborts, failed steps, failed rows, shared prefixes and preemptions."""
        self.run_more(num_requests)

    def run_more(self, num_requests: int) -> None:
        """So many more, until all are done."""
        for _ in range(num_requests):
            self.submit(f"r-{self.num_submitted}")
            self.num_submitted += 1
            while len(self._live) > self.random.randint(1, MAX_LIVE):
                self._turn()
        self.drain()

    def drain(self) -> None:
        """Let everybody finish."""
        self.executor.failing = set()
        while self.core is not None and self.core.has_work():
            self.step()
        self.state.tick(self.now)

    def submit(self, request_id: str) -> None:
        """A request of some account, half of its prompt one that others have as well."""
        assert self.core is not None
        prefix = [self.random.randint(0, 2)] * self.random.choice((0, 8, 16))
        prompt = [*prefix, *(self.random.randint(3, 900) for _ in range(self.random.randint(1, 16)))]
        submitted = submission(request_id, self.now, len(prompt), self.random.choice(ACCOUNTS))
        self._live[request_id] = submitted
        self.state.apply(API_SERVER, submitted)
        self.core.add_request(make_request(request_id, prompt, self.random.randint(1, 20), submitted_at=self.now))

    def step(self) -> None:
        """One step, and what its clients do about it."""
        assert self.core is not None
        for outputs in self.core.step().values():
            self._take(outputs)

    def _turn(self) -> None:
        chance = self.random.random()
        if chance < 0.03:
            self._abort(self.random.choice(list(self._live)))
        elif chance < 0.04:
            self.executor.failing = {self.random.choice(list(self._live))}
        elif chance < 0.05:
            self._is_failing = True
        elif chance < 0.07:
            self.pass_time(self.random.randint(0, 20_000_000))
        self.step()

    def _compute(self, plan: StepPlan) -> None:
        self.pass_time(self.random.randint(1_000_000, 3_000_000) + 100_000 * plan.num_tokens)
        is_failing, self._is_failing = self._is_failing, False
        if is_failing and plan.num_rows:
            self.num_failed_steps += 1
            raise RuntimeError("this step breaks")

    def _abort(self, request_id: str) -> None:
        assert self.core is not None
        self._end(request_id, "abort")
        self.core.abort_requests(AbortRequests(0, 0, [request_id], FinishReason.ABORT))

    def _take(self, outputs: EngineCoreOutputs) -> None:
        for request_id, reason in zip(outputs.request_ids, outputs.finish_reasons, strict=True):
            if reason >= 0 and request_id in self._live:
                self._end(request_id, FinishReason(reason).label)

    def _end(self, request_id: str, reason: str) -> None:
        self.endings[reason] += 1
        submitted = self._live.pop(request_id)
        ledger = self.state.book.live.get(request_id)
        moments = (ledger.first_token_at, ledger.last_token_at) if ledger is not None else (0, 0)
        num_tokens = ledger.num_output_tokens if ledger is not None else 0
        ended = RequestEnded(
            request_id=request_id,
            client_index=0,
            finish_reason=reason,
            error="internal_error" if reason == "error" else "",
            num_prompt_tokens=submitted.num_prompt_tokens,
            num_output_tokens=num_tokens,
            num_cached_tokens=0,
            first_token_at=moments[0],
            last_token_at=moments[1],
            taken_at=self.now,
            ended_at=self.now,
        )
        self.state.apply(API_SERVER, ended)


def submission(request_id: str, at: int, num_prompt_tokens: int, account: str, **changes: Any) -> RequestSubmitted:
    """A sequence that leaves the API server, without an HTTP request of its own."""
    known = {"operation": "text_completion", "model": MODEL, "max_tokens": 16, "top_p": 1.0, "account": account}
    return unknown_submission(request_id, at)._replace(num_prompt_tokens=num_prompt_tokens, **{**known, **changes})


def check_settled(core: ChargedCore) -> None:
    """No law is broken, nobody runs or waits, and no step stays open."""
    broken = {law: count for law, count in core.state.invariants.counts().items() if count}
    assert broken == {}, core.state.invariants.breaches()
    engine = core.state.engines["0"]
    assert (engine.num_running, engine.num_waiting) == (0, 0)
    core.state.tick(core.now + 10**11)
    assert [step for step, facts in engine.open_steps.items() if not facts.is_over] == []

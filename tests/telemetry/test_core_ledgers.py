"""What the real scheduler and core record keeps every law; ledgers and block map are what really happened."""

from random import Random
from typing import Any

import pytest
from core_bench import Bench
from fact_stream import API_SERVER, ENGINE, FactStream
from fake_executor import tiny_config
from recording_view import RecordingView

from vllm_obs.engine.frontend.outputs import SequenceTiming
from vllm_obs.engine.messages import FinishReason
from vllm_obs.engine.pause_state import PauseState
from vllm_obs.server.reply_metrics import Arrived, stage_ns
from vllm_obs.telemetry.records import RequestEnded, RequestSubmitted
from vllm_obs.telemetry.run_state import RunState

NUM_STEPS = 120
CORE_STAGES = ("queue", "prefill", "decode", "preempted", "recompute", "stalled")


class ObservedCore:
    """A core under random load on a small cache, and the state made from its records."""

    def __init__(self, seed: int, **settings: Any) -> None:
        self.random = Random(seed)
        policy = self.random.choice(("fcfs", "priority"))
        config = tiny_config(policy=policy, **settings)
        self.bench = Bench(num_blocks=self.random.choice((16, 24, 40)), config=config)
        self.state, self.view = RunState(), RecordingView()
        self.state.add_view(self.view)
        self.stream = FactStream()
        self.num_applied = 0
        self.ended: set[str] = set()

    def run(self) -> None:
        for number in range(NUM_STEPS):
            if self.random.random() < 0.4:
                self.add(f"r-{number}")
            if self.random.random() < 0.05:
                self.abort()
            if self.random.random() < 0.05:
                self.bench.executor.failing = set(list(self.bench.seen)[-1:])
            self.step()
        self.drain()

    def add(self, request_id: str) -> None:
        self.stream.now = self.bench.now
        num_tokens = self.random.randint(1, 40)
        prompt = [self.random.randint(0, 1)] * num_tokens
        priority = self.random.randint(0, 2)
        (_, submitted), *_ = self.stream.submit(
            request_id, is_taken=False, num_prompt_tokens=num_tokens, priority=priority, http_id=""
        )
        assert isinstance(submitted, RequestSubmitted)
        self.bench.now = self.stream.now
        self.state.apply(API_SERVER, submitted)
        self.bench.add(request_id, prompt, self.random.randint(1, 20), priority=priority)

    def abort(self) -> None:
        live = [request.request_id for request in self.bench.core.scheduler.live_requests()]
        if live:
            request_id = self.random.choice(live)
            self.end(request_id, "abort")
            self.bench.abort(request_id)

    def step(self) -> None:
        self.bench.step()
        self.apply()
        for request_id, seen in self.bench.seen.items():
            if seen.finish_reason >= 0 and request_id not in self.ended:
                self.end(request_id, FinishReason(seen.finish_reason).label)

    def apply(self) -> None:
        records = list(self.bench.recorder.records)
        for record in records[self.num_applied :]:
            self.state.apply(ENGINE, record)
        self.num_applied = len(records)

    def end(self, request_id: str, reason: str) -> None:
        self.ended.add(request_id)
        ledger = self.state.sequences[request_id]
        seen = self.bench.seen.get(request_id)
        num_tokens = len(seen.token_ids) if seen is not None else 0
        self.state.apply(
            API_SERVER,
            RequestEnded(
                request_id=request_id,
                client_index=0,
                finish_reason=reason,
                error="",
                num_prompt_tokens=ledger.submitted.num_prompt_tokens,
                num_output_tokens=num_tokens,
                num_cached_tokens=0,
                first_token_at=ledger.first_token_at,
                last_token_at=ledger.last_token_at,
                taken_at=self.bench.tick(),
                ended_at=self.bench.tick(),
            ),
        )

    def drain(self) -> None:
        while self.bench.core.has_work():
            self.step()
        self.apply()
        self.state.tick(self.bench.now)

    def broken(self) -> list[str]:
        return [f"{each.law}: {each.evidence}" for each in self.state.invariants.breaches() if each.num_broken]


@pytest.mark.parametrize("is_ahead", [False, True], ids=["", "ahead"])
@pytest.mark.parametrize("seed", range(12))
def test_random_load_keeps_every_law(seed: int, is_ahead: bool) -> None:
    observed = ObservedCore(seed, async_scheduling=is_ahead)
    observed.run()
    state = observed.state
    assert (observed.broken(), list(state.sequences)) == ([], [])
    assert len(state.ended) == observed.state.book.num_submitted == len(observed.ended)
    assert all(ledger.is_complete for ledger in state.ended)
    engine, pool = state.engines["0"], observed.bench.core.scheduler.kv_cache.pool
    assert (engine.num_running, engine.num_waiting) == (0, 0)
    assert tuple(engine.blocks.levels) == (pool.num_active, pool.num_cached, pool.num_free)
    assert engine.blocks.is_exact
    num_tokens = {ledger.request_id: ledger.num_output_tokens for ledger in state.ended if ledger.released}
    assert {request_id: len(gaps) for request_id, gaps in observed.view.gaps.items()} == {
        request_id: num for request_id, num in num_tokens.items() if num
    }


def test_the_load_is_hard_enough_to_mean_something() -> None:
    """Somewhere among the seeds there is preemption, recomputing, cache hits and every kind of ending."""
    stages: set[str] = set()
    endings: set[str] = set()
    num_cached = 0
    for seed in range(6):
        observed = ObservedCore(seed)
        observed.run()
        for ledger in observed.state.ended:
            stages |= {interval.stage for interval in ledger.intervals}
            num_cached += ledger.num_cached_tokens
            endings.add(ledger.ended.finish_reason if ledger.ended is not None else "")
    assert {"queue", "prefill", "decode", "preempted", "recompute"} <= stages
    assert {"length", "abort", "error"} <= endings
    assert num_cached > 0


def timings_told(bench: Bench) -> dict[str, SequenceTiming]:
    """What the core's messages tell of each sequence."""
    told: dict[str, SequenceTiming] = {}
    for message in bench.messages:
        for row, taken_at, scheduled_at in message.timings:
            told[message.request_ids[row]] = SequenceTiming(taken_at, scheduled_at, 0, 0)
        for row, detours in message.detours:
            told[message.request_ids[row]] = told[message.request_ids[row]]._replace(detours=detours)
        for request_id, num_tokens in zip(message.request_ids, message.num_new_tokens, strict=True):
            if num_tokens:
                first_at = told[request_id].first_token_at or message.sampled_at
                moments = {"first_token_at": first_at, "last_token_at": message.sampled_at}
                told[request_id] = told[request_id]._replace(**moments)
    return told


def held_up_core(seed: int, is_ahead: bool = False) -> ObservedCore:
    """A core whose sequences were preempted, paused and, by a budget under what may run, left out of steps."""
    budget = {"max_num_batched_tokens": 3 if is_ahead else 4} if seed % 2 else {}
    observed = ObservedCore(seed, async_scheduling=is_ahead, **budget)
    for number in range(NUM_STEPS):
        if observed.random.random() < 0.4:
            observed.add(f"r-{number}")
        if observed.random.random() < 0.05:
            observed.abort()
        if observed.random.random() < 0.05:
            mode = observed.random.choice(("keep", "wait"))
            observed.bench.core.call_utility("pause_scheduler", [mode])
            for _ in range(observed.random.randint(0, 2)):
                observed.step()
            observed.bench.core.call_utility("resume_scheduler", [])
        observed.step()
    observed.drain()
    return observed


@pytest.mark.parametrize("is_ahead", [False, True], ids=["", "ahead"])
def test_sequences_are_held_up_in_every_way(is_ahead: bool) -> None:
    """So that the next test means something: each kind of detour, before and after the first token."""
    told = [timing for seed in range(8) for timing in timings_told(held_up_core(seed, is_ahead).bench).values()]
    assert all(max(column) > 0 for column in zip(*(timing.detours for timing in told), strict=True))
    assert any(sum(timing.detours[:3]) > timing.detours.early_ns > 0 for timing in told)


@pytest.mark.parametrize("is_ahead", [False, True], ids=["", "ahead"])
@pytest.mark.parametrize("seed", range(12))
def test_the_core_tells_replies_what_its_records_say(seed: int, is_ahead: bool) -> None:
    """Stages worked out while they pass agree with the ledger to the nanosecond."""
    observed = held_up_core(seed, is_ahead)
    assert observed.broken() == []
    told = timings_told(observed.bench)
    for ledger in observed.state.ended:
        if ledger.ended is None or ledger.ended.finish_reason not in ("length", "stop"):
            continue
        timing, stages = told[ledger.request_id], ledger.stage_ns()
        found = stage_ns(Arrived(0, 0, 0), timing, 0)
        assert {name: found[name] for name in CORE_STAGES} == {name: stages[name] for name in CORE_STAGES}
    assert len(observed.bench.core._detours) == 0


def test_the_map_is_the_pool_after_every_step() -> None:
    observed = ObservedCore(99)
    for number in range(60):
        observed.add(f"r-{number}")
        observed.step()
        blocks, kv_cache = observed.state.engines["0"].blocks.now(), observed.bench.core.scheduler.kv_cache
        refs, hashes = kv_cache.pool.slice(0, kv_cache.pool.num_blocks)
        assert (blocks.num_refs, blocks.hashes) == (refs, [(each or b"")[:8] for each in hashes])
        live = {request.request_id: list(request.block_ids) for request in observed.bench.core.scheduler.running}
        assert blocks.tables == live


def test_a_pause_of_the_real_scheduler_is_a_reason() -> None:
    observed = ObservedCore(1)
    observed.add("r-0")
    observed.step()
    scheduler = observed.bench.core.scheduler
    assert scheduler.pause == PauseState.NONE
    observed.bench.core.call_utility("pause_scheduler", ["keep"])
    observed.bench.now += 1000
    observed.bench.core.call_utility("resume_scheduler", [])
    observed.drain()
    ledger = observed.state.ended.get("r-0")
    assert ledger is not None
    assert ledger.waits["paused"] >= 1000
    assert observed.broken() == []

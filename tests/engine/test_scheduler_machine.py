"""Scheduler and block pool under a state machine: whatever comes in whatever order, the books stay right."""

from dataclasses import dataclass
from itertools import combinations

import pytest
from fake_executor import expected_output, tiny_config
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from pipelined_executor import pipelined
from scheduler_driver import SchedulerDriver

from vllm_obs.engine.messages import FinishReason, SamplingSpec
from vllm_obs.engine.pause_state import PauseState
from vllm_obs.engine.request import Request, RequestStatus

BLOCK_SIZE = 2
MAX_MODEL_LEN = 24


@dataclass(frozen=True)
class Setting:
    """One world: a pool, limits, and how many plans may be in flight, which name every token in a pipeline.

    One that `is_ahead` leaves nobody out for the sake of a token that is awaited.
    """

    num_blocks: int
    max_num_seqs: int
    budget: int
    policy: str
    enable_prefix_caching: bool
    depth: int
    is_pipelined: bool
    is_ahead: bool


SETTINGS = st.builds(
    Setting,
    num_blocks=st.integers(2, 9),
    max_num_seqs=st.integers(1, 4),
    budget=st.integers(1, 8),
    policy=st.sampled_from(["fcfs", "priority"]),
    enable_prefix_caching=st.booleans(),
    depth=st.integers(1, 3),
    is_pipelined=st.booleans(),
    is_ahead=st.booleans(),
)
_BASES = ([0, 1, 1, 0, 0, 1, 0, 1, 1, 1, 0], [0, 1, 1, 0, 1, 1, 1, 0, 0, 0, 1])
# Few beginnings, cut anywhere, so that prefixes are shared all the time.
PROMPTS = st.builds(lambda base, length: base[:length], st.sampled_from(_BASES), st.integers(1, 11))


class SchedulerMachine(RuleBasedStateMachine):
    """Sequences come, run, share, are preempted, aborted and end, with up to three plans in flight."""

    @initialize(setting=SETTINGS)
    def begin(self, setting: Setting) -> None:
        config = tiny_config(
            max_model_len=MAX_MODEL_LEN,
            block_size=BLOCK_SIZE,
            enable_prefix_caching=setting.enable_prefix_caching,
            max_num_seqs=setting.max_num_seqs,
            max_num_batched_tokens=setting.budget,
            policy=setting.policy,
            async_scheduling=setting.is_ahead and not setting.is_pipelined,
        )
        if setting.is_pipelined:
            config = pipelined(setting.depth, config)
        self.setting = setting
        self.driver = SchedulerDriver(setting.num_blocks, config)
        self.first_scheduled: list[Request] = []
        self.num_added = 0

    @rule(
        prompt=PROMPTS,
        max_tokens=st.integers(1, 9),
        priority=st.integers(0, 2),
        cache_salt=st.sampled_from([None, None, "salt"]),
        is_stopped_by=st.integers(0, 8),
    )
    def add(
        self, prompt: list[int], max_tokens: int, priority: int, cache_salt: str | None, is_stopped_by: int
    ) -> None:
        stop = expected_output(prompt, 9)[is_stopped_by]
        sampling = SamplingSpec(max_tokens=max_tokens, stop_token_ids=(stop,))
        name = f"r{self.num_added}"
        self.num_added += 1
        self.driver.add(name, prompt, sampling=sampling, priority=priority, cache_salt=cache_salt)

    @precondition(lambda self: self.driver.scheduler.num_in_flight < self.setting.depth)
    @rule()
    def launch(self) -> None:
        state = self.driver.scheduler._state
        busy = state.in_flight_ids()
        awaited = {request.request_id for step in state.in_flight for request in step.sampled}
        plan, decisions, _ = self.driver.launch()
        if self.setting.is_pipelined:
            assert not busy & awaited & set(plan.running_ids), "a token is known before the next is asked for"
            assert not busy & set(decisions.left_out_ids), "nobody is held up while a step runs it"
        self.first_scheduled += [self.driver.requests[name] for name in decisions.admitted_ids]
        assert bool(self.driver.scheduler.num_waiting) == bool(decisions.head_reason), (
            "a head that waits knows why"
        )

    @precondition(lambda self: self.driver.scheduler.num_in_flight > 0)
    @rule()
    def answer(self) -> None:
        self.driver.answer()

    @rule(num_steps=st.integers(1, 6))
    def run_a_while(self, num_steps: int) -> None:
        for _ in range(num_steps):
            if self.driver.scheduler.num_in_flight < self.setting.depth:
                self.launch()
            if self.driver.scheduler.num_in_flight == self.setting.depth:
                self.answer()

    @precondition(lambda self: self.num_added > 0)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = f"r{data.draw(st.integers(0, self.num_added - 1))}"
        was_live = self.driver.scheduler.client_of(name) is not None
        assert (self.driver.abort(name) is not None) == was_live

    @rule()
    def reset_prefix_cache(self) -> None:
        kv_cache = self.driver.scheduler.kv_cache
        was_idle = kv_cache.pool.num_active == 0
        assert kv_cache.reset_prefix_cache() is was_idle
        assert not was_idle or kv_cache.pool.num_free == kv_cache.pool.num_blocks

    @rule(pause=st.sampled_from([PauseState.NO_ADMISSION, PauseState.ALL]))
    def run_a_while_paused(self, pause: PauseState) -> None:
        self.driver.scheduler.pause = pause
        self.run_a_while(2)
        self.driver.scheduler.pause = PauseState.NONE

    @invariant()
    def books_add_up(self) -> None:
        pool = self.driver.scheduler.kv_cache.pool
        self.driver.scheduler.check()
        assert pool.num_active + pool.num_cached + pool.num_free == pool.num_blocks

    @invariant()
    def blocks_are_shared_only_by_equal_prefixes(self) -> None:
        for one, other in combinations(self.driver.scheduler.running, 2):
            for block_id in set(one.block_ids) & set(other.block_ids):
                index = one.block_ids.index(block_id)
                end = (index + 1) * BLOCK_SIZE
                assert other.block_ids.index(block_id) == index
                assert one.token_ids[:end] == other.token_ids[:end]
                assert len(one.token_ids[:end]) == end, "only full blocks are shared"
                assert one.cache_salt == other.cache_salt

    @invariant()
    def the_running_stand_in_rank_order_before_those_that_wait(self) -> None:
        running = self.driver.scheduler.running
        assert [request.rank for request in running] == sorted(request.rank for request in running)
        assert all(request.status == RequestStatus.RUNNING for request in running)
        if self.setting.policy == "fcfs":
            live = self.driver.scheduler.live_requests()
            assert running == list(live)[: len(running)], "those who came first run"
            order = [request.rank for request in self.first_scheduled]
            assert order == sorted(order), "first come, first scheduled"

    @invariant()
    def tokens_are_those_of_each_sequence_alone(self) -> None:
        for request in self.driver.requests.values():
            tokens = list(request.token_ids)
            prompt, output = tokens[: request.num_prompt_tokens], tokens[request.num_prompt_tokens :]
            assert output == expected_output(prompt, len(output))

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        driver, scheduler = self.driver, self.driver.scheduler
        live = list(scheduler.live_requests())
        # The first in rank is never preempted: it ends within its tokens, computed once and perhaps once again.
        # A plan in flight can make it wait for blocks, so with several in flight it may take as often as many.
        max_steps = 1 + sum(2 * request.max_num_tokens for request in live)
        driver.run_pipelined(self.setting.depth, max_steps * self.setting.depth)
        driver.check_idle()
        assert driver.executor.row_ids == set()
        for request in live:
            self.check_ending(request)

    def check_ending(self, request: Request) -> None:
        if request.finish_reason == FinishReason.ERROR:
            num_slots = self.setting.num_blocks * BLOCK_SIZE
            assert request.num_tokens > num_slots, "only what the whole cache cannot hold fails"
        elif request.finish_reason == FinishReason.LENGTH:
            assert request.num_tokens == request.max_num_tokens
        else:
            assert request.finish_reason == FinishReason.STOP
            assert request.token_ids[-1] == request.stop_token_id


@pytest.mark.timeout(600)  # a failing example takes minutes to shrink
def test_books_stay_right_under_any_sequence_of_events() -> None:
    run_state_machine_as_test(
        SchedulerMachine,
        settings=settings(
            max_examples=200, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
        ),
    )

"""Drives a Scheduler with the fake executor, step by step or with plans left in flight, and checks every plan."""

from collections import deque
from typing import Any

from fake_executor import FakeExecutor, make_request, tiny_config

from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.messages import FinishReason
from vllm_obs.engine.plan import ModelRunnerOutput, StepPlan
from vllm_obs.engine.request import Request
from vllm_obs.engine.scheduler import Scheduler
from vllm_obs.engine.step_planner import ScheduledStep


class SchedulerDriver:
    """One scheduler, one worker, and every ending seen so far in `ended` by request id."""

    def __init__(self, num_blocks: int = 32, config: VllmConfig | None = None) -> None:
        self.config = config or tiny_config()
        self.scheduler = Scheduler(self.config, num_blocks)
        self.executor = FakeExecutor(num_blocks, self.config.cache.block_size)
        self.requests: dict[str, Request] = {}
        self.ended: dict[str, Request] = {}
        self.num_wasted_rows = 0
        self._answers: deque[tuple[set[int], ModelRunnerOutput]] = deque()

    @property
    def running_ids(self) -> list[str]:
        """The running sequences in rank order."""
        return [request.request_id for request in self.scheduler.running]

    def add(self, request_id: str, prompt: list[int], max_tokens: int = 8, **fields: Any) -> Request:
        """Queue a sequence."""
        request = self.scheduler.add_request(make_request(request_id, prompt, max_tokens, **fields))
        self.requests[request_id] = request
        return request

    def abort(self, request_id: str) -> Request | None:
        """End a sequence from outside."""
        ended = self.scheduler.finish_request(request_id, FinishReason.ABORT)
        self._collect()
        return ended

    def launch(self) -> ScheduledStep:
        """Plan a step and start it; its answer waits."""
        scheduled = self.scheduler.schedule()
        plan = scheduled.plan
        self._check_limits(plan)
        self._collect()
        output = self.executor.run(plan)
        if plan.num_rows:
            named = {block_id for name in plan.row_ids for block_id in self.requests[name].block_ids}
            self._answers.append((named, output))
        return scheduled

    def answer(self) -> list[str]:
        """Apply the oldest answer; the ids that got a token."""
        return self.answer_with([])

    def answer_with(self, failed: list[tuple[str, str, str]]) -> list[str]:
        """Apply the oldest answer, to which these failures are added; the ids that got a token."""
        _, output = self._answers.popleft()
        output.failed.extend(failed)
        update = self.scheduler.update_from_output(output)
        self.num_wasted_rows += update.num_wasted_rows
        self._collect()
        return [request.request_id for request in update.requests]

    def step(self) -> ScheduledStep:
        """Plan a step and answer it."""
        scheduled = self.launch()
        if scheduled.plan.num_rows:
            self.answer()
        return scheduled

    def run(self, max_steps: int = 500) -> list[ScheduledStep]:
        """Step until nothing is left to do."""
        steps: list[ScheduledStep] = []
        while self.scheduler.has_work():
            assert len(steps) < max_steps, f"not done after {max_steps} steps: {self.scheduler.stats()}"
            steps.append(self.step())
        return steps

    def run_pipelined(self, depth: int, max_steps: int) -> None:
        """Do everything with up to `depth` plans in flight; answers come only when no more can be launched."""
        num_steps = 0
        while self.scheduler.has_work():
            assert num_steps < max_steps, f"not done after {max_steps} steps: {self.scheduler.stats()}"
            num_rows = 0
            if self.scheduler.num_in_flight < depth:
                num_steps += 1
                num_rows = self.launch().plan.num_rows
            if not num_rows and self.scheduler.num_in_flight:
                self.answer()

    def output_of(self, request_id: str) -> list[int]:
        """The tokens a sequence has generated."""
        request = self.requests[request_id]
        return list(request.token_ids[request.num_prompt_tokens :])

    def hashed_blocks(self) -> int:
        """How many blocks the prefix cache finds, in use or not."""
        pool = self.scheduler.kv_cache.pool
        return sum(map(bool, pool.slice(0, pool.num_blocks)[1]))

    def check_idle(self) -> None:
        """Nothing lives, nothing is in flight, and every block is back."""
        pool = self.scheduler.kv_cache.pool
        assert self.scheduler.num_live == self.scheduler.num_in_flight == 0
        assert pool.num_cached + pool.num_free == pool.num_blocks
        self.scheduler.check()

    def _check_limits(self, plan: StepPlan) -> None:
        limits = self.config.scheduler
        assert plan.num_tokens <= limits.max_num_batched_tokens
        assert plan.num_rows <= limits.max_num_seqs
        assert len(self.scheduler.running) <= limits.max_num_seqs
        assert len(set(plan.row_ids)) == plan.num_rows

    def _collect(self) -> None:
        for request in self.scheduler.take_ended():
            assert request is not self.ended.get(request.request_id), "one ending each"
            self.ended[request.request_id] = request
        assert self.scheduler.take_errors() == []
        for _, block_ids, num_hits in self.scheduler.take_block_events().allocated:
            for named, _ in self._answers:
                assert named.isdisjoint(block_ids[num_hits:]), "a block that a plan in flight names was reused"
        self.scheduler.check()

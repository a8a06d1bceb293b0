"""The fake executor as a pipeline: steps are under way until somebody waits, and plans name every token."""

from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from awaited_calls import AwaitedCalls
from fake_executor import FakeExecutor, tiny_config

from vllm_obs.engine.config import ParallelConfig, VllmConfig
from vllm_obs.engine.plan import GrammarMasks, ModelRunnerOutput, StepPlan


def pipelined(num_stages: int, config: VllmConfig | None = None, **fields: Any) -> VllmConfig:
    """A tiny configuration of so many stages."""
    return replace(config or tiny_config(**fields), parallel=ParallelConfig("mp", num_stages, 1, num_stages))


@dataclass
class PipelinedExecutor(FakeExecutor):
    """`launched` is every plan in the order it was sent, `most_in_flight` how many had not answered at once."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._calls = AwaitedCalls()
        self.launched: list[StepPlan] = []
        self.most_in_flight = 0
        self._num_answered = 0

    def execute_model(self, plan: StepPlan) -> "Future[None]":
        """Send a plan."""
        self.launched.append(plan)
        self.most_in_flight = max(self.most_in_flight, len(self.launched) - self._num_answered)
        return self._calls.call(lambda: self._run(plan))

    def sample_tokens(self, masks: GrammarMasks | None) -> "Future[ModelRunnerOutput]":
        """Have the plan sent last sampled."""
        return self._calls.call(lambda: self._sample(self.plans[-1]))

    def _run(self, plan: StepPlan) -> None:
        self._num_answered += 1
        self.plans.append(plan)
        for request_id, given in zip(plan.running_ids, plan.running_last_token_ids, strict=True):
            row = self._rows.get(request_id)
            assert row is None or given == row.pending, "a first stage knows no token but those that it is given"
        self._execute(plan)

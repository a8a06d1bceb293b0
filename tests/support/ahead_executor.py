"""The fake executor as a device that is given work ahead: a step is computed when it comes, and its answer is
fetched when somebody asks for it."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from fake_executor import FakeExecutor

from vllm_obs.engine.executor.late_answer import LateAnswer
from vllm_obs.engine.plan import GrammarMasks, ModelRunnerOutput, StepPlan


@dataclass
class AheadExecutor(FakeExecutor):
    """`calls` is what was asked of it, in order; `before_answer` may raise when an answer is fetched."""

    calls: list[str] = field(default_factory=list)
    before_answer: Callable[[int], None] = lambda step: None

    def execute_model(self, plan: StepPlan) -> Future[None]:
        """Compute the step."""
        self.calls.append(f"execute {plan.step}")
        return super().execute_model(plan)

    def sample_tokens(self, masks: GrammarMasks | None) -> Future[ModelRunnerOutput]:
        """Sample it, and keep the answer."""
        step = self.plans[-1].step
        self.calls.append(f"sample {step}")
        sampled = super().sample_tokens(masks)
        if sampled.exception():
            return sampled

        def fetch() -> ModelRunnerOutput:
            self.calls.append(f"answer {step}")
            self.before_answer(step)
            return sampled.result()

        return LateAnswer(fetch)

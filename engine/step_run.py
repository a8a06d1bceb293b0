"""StepRun: takes one plan through the executor, with the grammar masks made beside the forward pass."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from vllm_obs.engine.errors import EngineDeadError
from vllm_obs.engine.executor.interface import Executor
from vllm_obs.engine.faults import maybe_fault
from vllm_obs.engine.plan import ModelRunnerOutput
from vllm_obs.engine.step_planner import ScheduledStep
from vllm_obs.engine.structured.grammar_book import GrammarBook
from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.recorder import ProcessRecorder

STEP_DEADLINE_SECONDS = 300.0

T = TypeVar("T")


class StepRun:
    """Used from the core's thread, one step after the other."""

    def __init__(
        self, executor: Executor, grammars: GrammarBook, recorder: ProcessRecorder, clock: Callable[[], int]
    ) -> None:
        self.moments = (0, 0)
        """When the last step was executed, and when it was sampled (monotonic ns)."""
        self._executor = executor
        self._grammars = grammars
        self._recorder = recorder
        self._clock = clock

    def run(self, scheduled: ScheduledStep) -> ModelRunnerOutput:
        """The step's answer. A plan without rows only releases, and nothing is sampled then.

        Grammar masks are made while the forward pass runs elsewhere, or after one that ran in this thread: on the
        same cores they would hold up its threads, which wait for each other. EngineDeadError for a step without
        an answer in time.
        """
        plan, constrained = scheduled.plan, scheduled.constrained
        self._recorder.doing(Activity.EXECUTING)
        maybe_fault("step")
        executed = self._executor.execute_model(plan)
        masks = self._grammars.begin_masks(constrained, in_thread=not executed.done()) if constrained else None
        if not plan.num_rows:
            _wait_for(executed, plan.step)
            return ModelRunnerOutput(plan.step, [], [], [], [], [], [])
        sampled = self._executor.sample_tokens(None if masks is None else _wait_for(masks, plan.step))
        _wait_for(executed, plan.step)
        executed_at = self._clock()
        self._recorder.advance()
        self._recorder.doing(Activity.SAMPLING)
        output = _wait_for(sampled, plan.step)
        self.moments = (executed_at, self._clock())
        self._recorder.advance()
        return output


def _wait_for(future: Future[T], step: int) -> T:
    """The future's result; EngineDeadError when the executor does not answer a step within the deadline."""
    try:
        return future.result(STEP_DEADLINE_SECONDS)
    except TimeoutError as error:
        raise EngineDeadError(f"step {step} had no answer within {STEP_DEADLINE_SECONDS:.0f} s") from error

"""StepRun: takes plans through the executor, with the grammar masks made beside the forward pass."""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

from vllm_obs.engine.errors import EngineDeadError
from vllm_obs.engine.executor.interface import Executor
from vllm_obs.engine.faults import maybe_fault
from vllm_obs.engine.plan import GrammarMasks, ModelRunnerOutput, StepPlan
from vllm_obs.engine.request import Request, RequestStatus
from vllm_obs.engine.step_planner import ScheduledStep
from vllm_obs.engine.structured.grammar_book import GrammarBook
from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.recorder import ProcessRecorder

STEP_DEADLINE_SECONDS = 300.0

T = TypeVar("T")


@dataclass
class Flight:
    """A step that was handed to the executor and whose answer was not taken yet."""

    scheduled: ScheduledStep
    executed: Future[None]
    sampled: Future[ModelRunnerOutput] | None = None
    unmasked: list[tuple[str, Exception]] = field(default_factory=list)
    """Rows whose mask could not be made: they are sampled without one."""

    @property
    def plan(self) -> StepPlan:
        """What it runs."""
        return self.scheduled.plan

    @property
    def is_held(self) -> bool:
        """Whether it is not sampled yet, for its masks follow from tokens of the step before it."""
        return self.sampled is None and self.plan.num_rows > 0

    @property
    def has_failed(self) -> bool:
        """Whether it is known already that it failed."""
        return any(future.done() and future.exception() for future in (self.executed, self.sampled) if future)


class StepRun:
    """Used from the core's thread. Up to `max_in_flight` steps are under way; they end in the order they began."""

    def __init__(
        self,
        executor: Executor,
        grammars: GrammarBook,
        recorder: ProcessRecorder,
        clock: Callable[[], int],
        max_in_flight: int = 1,
    ) -> None:
        self.moments = (0, 0)
        """When the last step was executed, and when it was sampled (monotonic ns)."""
        self._executor = executor
        self._grammars = grammars
        self._recorder = recorder
        self._clock = clock
        self._max_in_flight = max_in_flight
        self._flights: deque[Flight] = deque()

    def __len__(self) -> int:
        return len(self._flights)

    @property
    def is_full(self) -> bool:
        """Whether one has to end before the next begins.

        Nothing is worth beginning beside one without rows, or that failed; nor may it be before one is sampled.
        """
        flights = self._flights
        if len(flights) >= self._max_in_flight or not flights:
            return bool(flights)
        last = flights[-1]
        return not last.plan.num_rows or last.is_held or last.has_failed

    @property
    def oldest(self) -> Flight:
        """The step that ends next; there must be one."""
        return self._flights[0]

    @property
    def held(self) -> Flight | None:
        """The oldest step, if nobody has had it sampled: all tokens before it are known then."""
        return self._flights[0] if self._flights and self._flights[0].is_held else None

    def start(self, scheduled: ScheduledStep) -> None:
        """Hand a step to the executor. A plan without rows only releases, and nothing is sampled then.

        One whose grammars do not know the tokens before it yet is held: `sample` it when they do.
        """
        plan, constrained = scheduled.plan, scheduled.constrained
        self._recorder.doing(Activity.EXECUTING)
        maybe_fault("step")
        flight = Flight(scheduled, self._executor.execute_model(plan))
        is_early = any(request.num_planned_tokens - request.num_tokens > 1 for request in constrained)
        if plan.num_rows and not is_early:
            self._sample(flight, constrained)
        self._flights.append(flight)

    def sample(self, held: Flight) -> None:
        """Have a step sampled that was held. Whoever has left meanwhile needs no mask."""
        running = [each for each in held.scheduled.constrained if each.status == RequestStatus.RUNNING]
        self._sample(held, running)

    def _sample(self, flight: Flight, constrained: Sequence[Request]) -> None:
        """Grammar masks are made while the forward pass runs elsewhere, or after one that ran in this thread: on
        the same cores they would hold up its threads, which wait for each other.
        """
        masks: GrammarMasks | None = None
        if constrained:
            making = self._grammars.begin_masks(constrained, in_thread=not flight.executed.done())
            masks = _wait_for(making, flight.plan.step)
            flight.unmasked = self._grammars.take_failed()
        flight.sampled = self._executor.sample_tokens(masks)

    def finish(self) -> tuple[Flight, ModelRunnerOutput]:
        """The oldest step and its answer, waiting for that. EngineDeadError for one without an answer in time."""
        flight = self._flights.popleft()
        step = flight.plan.step
        self._recorder.doing(Activity.EXECUTING)
        _wait_for(flight.executed, step)
        assert not flight.is_held, "a step is sampled before its answer is asked for"
        if flight.sampled is None:
            return flight, ModelRunnerOutput(step, [], [], [], [], [], [])
        executed_at = self._clock()
        self._recorder.advance()
        self._recorder.doing(Activity.SAMPLING)
        output = _wait_for(flight.sampled, step)
        self.moments = (executed_at, self._clock())
        self._recorder.advance()
        return flight, output

    def give_up(self) -> list[StepPlan]:
        """Forget the steps under way: their plans. Ranks run them to their end, and nobody takes the answers."""
        plans = [flight.plan for flight in self._flights]
        self._flights.clear()
        return plans


def _wait_for(future: Future[T], step: int) -> T:
    """The future's result; EngineDeadError when the executor does not answer a step within the deadline."""
    try:
        return future.result(STEP_DEADLINE_SECONDS)
    except TimeoutError as error:
        raise EngineDeadError(f"step {step} had no answer within {STEP_DEADLINE_SECONDS:.0f} s") from error

"""The engine's core: takes requests, runs steps, and answers in columns, with a boundary around each request."""

import logging
import time
from collections.abc import Callable
from typing import Any

from vllm_obs.engine.block_pool import BlockCountError
from vllm_obs.engine.codec_plain import DropReason
from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.core_admission import CoreAdmission
from vllm_obs.engine.core_counters import CoreCounters
from vllm_obs.engine.core_facts import engine_described, engine_facts
from vllm_obs.engine.core_outputs import OutputCollector, OutputStamp
from vllm_obs.engine.core_queue import CoreQueue
from vllm_obs.engine.core_records import CoreRecords
from vllm_obs.engine.core_utilities import CoreUtilities
from vllm_obs.engine.detours import DetourClock
from vllm_obs.engine.errors import EngineDeadError, RequestError
from vllm_obs.engine.executor.interface import Executor
from vllm_obs.engine.failure_streak import FailureStreak
from vllm_obs.engine.messages import AbortRequests, EngineCoreOutputs, EngineCoreRequest, FinishReason
from vllm_obs.engine.pause_state import PauseState
from vllm_obs.engine.plan import ModelRunnerOutput, StepPlan
from vllm_obs.engine.profile_core import CoreProfiles
from vllm_obs.engine.queue_bound import QueueLimits
from vllm_obs.engine.request import Request
from vllm_obs.engine.request_bounds import RequestBounds
from vllm_obs.engine.scheduler import Scheduler
from vllm_obs.engine.scheduler_state import INTERNAL_ERROR
from vllm_obs.engine.step_planner import ScheduledStep
from vllm_obs.engine.step_run import Flight, StepRun
from vllm_obs.engine.structured.grammar_book import GrammarBook
from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.recorder import ProcessRecorder
from vllm_obs.telemetry.records import EngineStateChanged, FrameDropped

logger = logging.getLogger(__name__)


class EngineCore:
    """One scheduler over one executor, driven from one thread.

    What is done for one request runs inside a boundary that fails that request only. An unexpected error in a
    step fails the step's batch; the third step in a row that fails, in sampling too, with nobody's token between
    is raised, as is every BlockCountError, EngineDeadError and MemoryError: the process must not go on then.
    """

    def __init__(
        self,
        config: VllmConfig,
        executor: Executor,
        recorder: ProcessRecorder,
        clock: Callable[[], int] = time.monotonic_ns,
        grammars: GrammarBook | None = None,
    ) -> None:
        """Loads the model: takes seconds. Raises ConfigError or StartupError."""
        self._config = config
        self._executor = executor
        self._clock = clock
        capacity = executor.initialize()
        self.facts = engine_facts(config, capacity, executor.startup_phases())
        self.scheduler = Scheduler(config, capacity.num_blocks)
        self.counters = CoreCounters()
        self._recorder = recorder
        self._records = CoreRecords(recorder)
        self._grammars = grammars or GrammarBook(config.model)
        self._utilities = CoreUtilities(self.scheduler, CoreProfiles(executor, recorder, config.engine_index))
        self._outputs = OutputCollector()
        self._detours = DetourClock()
        self._queue = CoreQueue(QueueLimits.from_config(config), self.scheduler)
        bounds = RequestBounds.from_config(config, capacity.num_blocks)
        self._admission = CoreAdmission(self.scheduler, self._queue, bounds, self._grammars)
        num_in_flight = 2 if config.scheduler.async_scheduling else config.parallel.pipeline_parallel_size
        self._run = StepRun(executor, self._grammars, recorder, clock, num_in_flight)
        self._step = self._answered_step = 0
        self._plan: StepPlan | None = None
        self._failures = FailureStreak()
        recorder.record(engine_described(config, capacity, clock()))
        recorder.record(EngineStateChanged("awake", clock()))

    def add_request(self, request: EngineCoreRequest) -> None:
        """Queue a sequence. One that is out of bounds is answered with an error row, never an exception."""
        try:
            if self.scheduler.client_of(request.request_id) is not None:
                self.counters.num_duplicate_adds += 1
                self._ignored("duplicate")
                return
            taken = self._admission.admit(request)
            taken.taken_at = self._clock()
            self._records.taken(taken, request)
        except RequestError as error:
            self._reject(request, error.reason, str(error))
        except MemoryError:
            raise
        except Exception:
            logger.exception("a request could not be taken")
            self._reject(request, "internal_error", "The request could not be taken.")

    def _reject(self, request: EngineCoreRequest, reason: str, message: str) -> None:
        self.counters.num_rejected_adds += 1
        self._outputs.add_rejected(request.client_index, request.request_id, reason, message)

    def abort_requests(self, aborts: AbortRequests) -> None:
        """End sequences, in whatever state they are, with the reason their client recorded.

        Ids that are unknown, ended already or another client's are counted and otherwise ignored.
        """
        reason = FinishReason(aborts.reason) if aborts.reason in set(FinishReason) else FinishReason.ABORT
        num_unknown_before = self.counters.num_unknown_aborts
        for request_id in aborts.request_ids:
            if self.scheduler.client_of(request_id) == aborts.client_index:
                self.scheduler.finish_request(request_id, reason)
            else:
                self.counters.num_unknown_aborts += 1
        if self.counters.num_unknown_aborts > num_unknown_before:
            self._ignored("unknown")
        self._settle([])

    def _ignored(self, reason: DropReason) -> None:
        """A message had nothing to change: a sequence that lives was added, or none was to be ended."""
        self._recorder.record(FrameDropped("engine_core", reason, self._clock()))

    def is_live(self, request_id: str) -> bool:
        """Whether there is a sequence of that id that has not ended."""
        return self.scheduler.find(request_id) is not None

    def live_ids(self, client_index: int) -> list[str]:
        """The sequences of a client that have not ended, in order of arrival."""
        live = self.scheduler.live_requests()
        return [request.request_id for request in live if request.client_index == client_index]

    def forget_client(self, client_index: int) -> int:
        """A client is gone: end its sequences and keep nothing it was to be told; how many they were."""
        request_ids = self.live_ids(client_index)
        generation = self._config.generation
        self.abort_requests(AbortRequests(client_index, generation, request_ids, int(FinishReason.ABORT)))
        self._outputs.forget(client_index)
        return len(request_ids)

    def call_utility(self, method: str, args: list[Any]) -> Any:
        """The answer of an allowed utility method; RequestError for any other or for wrong arguments."""
        pause = self.scheduler.pause
        result = self._utilities.call(method, args)
        if self.scheduler.pause != pause:
            self._change_state(self._clock())
        self._settle([])
        return result

    def _change_state(self, at: int) -> None:
        if self.scheduler.pause == PauseState.NONE:
            self._recorder.record(EngineStateChanged("awake", at))
            self._detours.resumed(self.scheduler.running, self.scheduler.last_step_of)
        else:
            self._recorder.record(EngineStateChanged("paused", at))
            self._detours.paused(at)

    def on_grammar(self, call: Callable[[], None]) -> None:
        """Call this, from any thread, when a grammar that sequences wait for is compiled: there may be work."""
        self._grammars.on_ready = call

    @property
    def resting(self) -> Activity:
        """Why there is no work: nobody wants any, it was told to leave it undone, or grammars are compiled."""
        if self.scheduler.pause != PauseState.NONE:
            return Activity.PAUSED
        return Activity.COMPILING_GRAMMAR if self.scheduler.awaits_grammar else Activity.WAITING

    def has_work(self) -> bool:
        """Whether `step` has something to run or to hand out."""
        return bool(self._outputs) or self._has_steps()

    def _has_steps(self) -> bool:
        """Whether there is something to plan, or a plan to hear of: one without rows too, which only releases."""
        return self.scheduler.has_work() or len(self._run) > 0

    def step(self) -> dict[int, EngineCoreOutputs]:
        """Run one step if there is something to run; what clients must know, by client index (may be empty).

        In a pipeline, or ahead, further steps are begun before the oldest, which is the one that ends here, is
        waited for.
        """
        if self._has_steps():
            try:
                self._run_step()
            except (EngineDeadError, BlockCountError, MemoryError):
                raise
            except Exception as error:
                self._fail_step(error)
        return self._take_outputs()

    def shutdown(self) -> None:
        """End the executor; idempotent."""
        self._grammars.close()
        self._executor.shutdown()

    def _run_step(self) -> None:
        while scheduled := self._schedule_next():
            self._run.start(scheduled)
        flight, output = self._finish_oldest()
        self._update_from_output(flight, output)
        self._sample_held()

    def _schedule_next(self) -> ScheduledStep | None:
        """The next step; None when no other can be under way, or none would have anything to run."""
        if self._run.is_full or (len(self._run) and not self.scheduler.has_unplanned()):
            return None
        return self._schedule()

    def _schedule(self) -> ScheduledStep:
        self._recorder.doing(Activity.SCHEDULING)
        self._plan = None
        begun_at = self._clock()
        scheduled = self.scheduler.schedule()
        self._plan, self._step = scheduled.plan, scheduled.plan.step
        self._recorder.begin_step(self._step)
        if self.scheduler.num_live or scheduled.plan.num_rows:
            ended_at = self._clock()
            self._records.planned(scheduled, self.scheduler, begun_at, ended_at)
            self._stamp_admitted(scheduled.decisions.admitted_ids, ended_at)
            find, last_step_of = self.scheduler.find, self.scheduler.last_step_of
            self._detours.planned(scheduled.decisions, find, last_step_of, ended_at)
        self._settle([])
        return scheduled

    def _stamp_admitted(self, request_ids: list[str], scheduled_at: int) -> None:
        for request_id in request_ids:
            request = self.scheduler.find(request_id)
            if request is not None:
                request.scheduled_at = scheduled_at
                if request.num_computed_tokens < request.num_tokens and self._queue.is_bounded:
                    self._outputs.add_scheduled(request)
            self._queue.remove(request_id)

    def _finish_oldest(self) -> tuple[Flight, ModelRunnerOutput]:
        self._plan = self._run.oldest.plan
        self._answered_step = self._plan.step
        return self._run.finish()

    def _sample_held(self) -> None:
        """The step begun ahead is sampled now if its grammars had to hear of the answer first."""
        if (held := self._run.held) is not None:
            self._plan = held.plan
            self._run.sample(held)

    def _update_from_output(self, flight: Flight, output: ModelRunnerOutput) -> None:
        plan, constrained = flight.plan, flight.scheduled.constrained
        if not plan.num_rows:
            return
        self._recorder.doing(Activity.UPDATING)
        broken_ids = [request_id for request_id, reason, _ in output.failed if reason == "internal_error"]
        has_broken_rows = any(self.is_live(request_id) for request_id in broken_ids)
        if flight.unmasked:
            self._fail_unmasked(flight, output)
        update = self.scheduler.update_from_output(output)
        failed_ids = {request_id for request_id, _, _ in output.failed}
        if suspects := [each.request_id for each in self.scheduler.suspects if each.request_id in failed_ids]:
            words = "step %d: no numbers for %s, which began on others' blocks: computed anew without them"
            logger.warning(words, plan.step, ", ".join(suspects))
        if constrained:
            update = self.scheduler.accept_grammars(constrained, update)
        self.counters.num_wasted_rows += update.num_wasted_rows
        self._detours.answered(plan.step, update.requests, self.scheduler.find, self._run.moments[1])
        self._outputs.add_tokens(update, output.logprobs)
        self._records.answered(plan.step, (*self._run.moments, self._clock()), update)
        self._settle(update.requests)
        self._records.keyframes(self._step, self.scheduler)
        if output.request_ids or output.pooled:
            self._failures.end()
        elif has_broken_rows:
            self._failures.count("rows that could not be sampled")

    def _fail_unmasked(self, flight: Flight, output: ModelRunnerOutput) -> None:
        """What was sampled without the mask it should have had is not used."""
        for request_id, error in flight.unmasked:
            logger.error("request %s has no mask in step %d", request_id, flight.plan.step, exc_info=error)
            output.failed.append((request_id, "internal_error", INTERNAL_ERROR))

    def _settle(self, requests_with_token: list[Request]) -> None:
        """Record and answer what ended since last time; verify the books if a boundary caught an error."""
        if not self.scheduler.has_news:
            return
        ended = self.scheduler.take_ended()
        if ended:
            answered = {request.rank for request in requests_with_token}
            now = self._clock()
            for request in ended:
                self._detours.ended(request.request_id)
                self._queue.remove(request.request_id)
                self._records.released(request, now)
                self.counters.num_failed_requests += request.finish_reason == FinishReason.ERROR
                if request.rank not in answered:
                    self._outputs.add_ended(request)
        self._records.blocks(self._step, self.scheduler.take_block_events())
        errors = self.scheduler.take_errors()
        for request, error in errors:
            logger.error("request %s failed in step %d", request.request_id, self._step, exc_info=error)
        if errors:
            self.scheduler.check()

    def _fail_step(self, error: Exception) -> None:
        """End the batch with an error and go on, unless the books are wrong or this keeps happening.

        The batch of every step under way, that is: none of them is waited for any more.
        """
        step = self._answered_step = self._step if self._plan is None else self._plan.step
        logger.error("step %d failed", step, exc_info=error)
        self.counters.num_failed_steps += 1
        given_up = [plan for plan in self._run.give_up() if plan.step != step]
        batch = self.scheduler.fail_batch(self._plan, given_up)
        failed_at = self._clock()
        self._detours.failed(failed_at)
        self._records.failed(step, error, failed_at, batch)
        for each in given_up:
            self._records.failed(each.step, error, failed_at, [])
        self._settle([])
        self.scheduler.check()
        self._failures.count(repr(error), error)

    def _take_outputs(self) -> dict[int, EngineCoreOutputs]:
        if not self._outputs:
            return {}
        stamp = OutputStamp(
            engine_index=self.facts.engine_index,
            generation=self._config.generation,
            step=self._answered_step,
            stats=self.scheduler.stats(),
            sampled_at=self._run.moments[1],
            sent_at=self._clock(),
        )
        return self._outputs.take(stamp)

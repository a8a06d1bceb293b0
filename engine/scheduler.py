"""The scheduler: which sequences run in the next step, on which blocks, and what the answer changes."""

from collections.abc import Iterable, Sequence

from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.faults import maybe_fault
from vllm_obs.engine.kv_cache import BlockEvents, KVCacheManager
from vllm_obs.engine.messages import EngineCoreRequest, FinishReason, SchedulerStats
from vllm_obs.engine.pause_state import PauseState
from vllm_obs.engine.plan import ModelRunnerOutput, StepPlan
from vllm_obs.engine.request import NOT_ENDED, Grammar, Request
from vllm_obs.engine.scheduler_state import SchedulerLimits, SchedulerState
from vllm_obs.engine.step_answer import StepUpdate, apply_output
from vllm_obs.engine.step_planner import ScheduledStep, StepPlanner


class Scheduler:
    """Continuous batching under a token budget, after vLLM's V1 scheduler; pure: no clock, I/O, tensor or log.

    Sequences have a rank, (priority, order of arrival), with priority 0 for all under fcfs. The running are
    served in rank order, then the waiting queue's head; when blocks run out the last in rank is preempted and
    computed again later. Under fcfs the earliest sequence is therefore never preempted while another runs, so
    each ends. A waiting sequence preempts nobody. Several plans may be in flight: `schedule` may be called
    again before `update_from_output`, which takes the answers in order. In a pipeline, whose plans name every
    token, a sequence sits out while its last token is awaited, and each plan has its share of the rows only.
    Elsewhere it goes on with the awaited token, unless that is its last by the length.
    """

    def __init__(self, config: VllmConfig, num_blocks: int) -> None:
        self._state = SchedulerState(
            SchedulerLimits.from_config(config),
            KVCacheManager(num_blocks, config.cache.block_size, config.cache.enable_prefix_caching),
        )
        self._num_arrivals = 0
        self._step = 0

    @property
    def kv_cache(self) -> KVCacheManager:
        """The manager of this scheduler's blocks."""
        return self._state.kv_cache

    @property
    def running(self) -> list[Request]:
        """The running sequences in rank order; not to be changed by the caller."""
        return self._state.running

    @property
    def num_waiting(self) -> int:
        """How many sequences wait, preempted ones and those without a compiled grammar included."""
        return len(self._state.waiting) + len(self._state.unready)

    @property
    def num_in_flight(self) -> int:
        """How many plans have not answered."""
        return len(self._state.in_flight)

    @property
    def pause(self) -> PauseState:
        """What may be planned."""
        return self._state.pause

    @pause.setter
    def pause(self, pause: PauseState) -> None:
        self._state.pause = pause

    @property
    def suspects(self) -> list[Request]:
        """Sequences without numbers that the next plan sends back; not to be changed by the caller."""
        return self._state.suspects

    @property
    def num_live(self) -> int:
        """How many sequences run or wait."""
        return len(self._state.requests)

    def client_of(self, request_id: str) -> int | None:
        """The client of a live sequence; None when there is none of that id."""
        request = self._state.requests.get(request_id)
        return None if request is None else request.client_index

    def has_work(self) -> bool:
        """Whether `schedule` has something to plan, to release or to wait for."""
        state = self._state
        if state.released_ids or state.in_flight:
            return True
        if state.unready and len(state.unready) == len(state.requests):
            return any(request.grammar is None or request.grammar.is_ready for request in state.unready.values())
        if state.pause == PauseState.NONE:
            return bool(state.requests)
        return state.pause == PauseState.NO_ADMISSION and bool(state.running)

    def has_unplanned(self) -> bool:
        """Whether a step planned now, beside those in flight, would probably run something."""
        state = self._state
        if state.pause == PauseState.ALL:
            return False
        is_ahead = state.limits.is_ahead
        for request in state.running:
            num_planned = request.num_planned_tokens
            if num_planned == request.num_tokens or (is_ahead and num_planned < request.max_num_tokens):
                return True
        may_admit = state.pause == PauseState.NONE and len(state.running) < state.limits.max_num_seqs
        return may_admit and bool(state.waiting) and not state.suspects  # beside whom nobody is admitted

    def last_step_of(self, request_id: str) -> int:
        """The newest plan in flight that runs a sequence; 0 where none does."""
        return self._state.last_step_of(request_id)

    def is_held(self, request_id: str) -> bool:
        """Whether a plan in flight keeps blocks that the sequence has no more."""
        return any(request_id == held_id for step in self._state.in_flight for held_id, _ in step.held)

    @property
    def awaits_grammar(self) -> bool:
        """Whether a sequence cannot be queued yet because its grammar is being compiled."""
        return bool(self._state.unready)

    def add_request(self, message: EngineCoreRequest, grammar: Grammar | None = None) -> Request:
        """Queue a checked sequence whose id is not live; one with a grammar once that is ready."""
        limits = self._state.limits
        rank = (message.priority if limits.is_priority_policy else 0, self._num_arrivals)
        request = Request(message, rank, limits.max_model_len, grammar)
        self._num_arrivals += 1
        self._state.add(request)
        return request

    def finish_request(self, request_id: str, reason: FinishReason = FinishReason.ABORT) -> Request | None:
        """End a live sequence from outside, in whatever state it is; None when there is none of that id."""
        request = self._state.requests.get(request_id)
        if request is not None:
            self._state.end(request, reason)
        return request

    def live_requests(self) -> Iterable[Request]:
        """Every live sequence, in order of arrival; a copy, so that they may be ended meanwhile."""
        return list(self._state.requests.values())

    def live_ids(self) -> list[str]:
        """The id of every live sequence, in order of arrival; a copy."""
        return list(self._state.requests)

    def find(self, request_id: str) -> Request | None:
        """The live sequence of that id; None when there is none."""
        return self._state.requests.get(request_id)

    def schedule(self) -> ScheduledStep:
        """Plan the next step. A plan with rows is in flight until `update_from_output` or `fail_batch`."""
        self._step += 1
        return StepPlanner(self._state, self._step).plan()

    def update_from_output(self, output: ModelRunnerOutput) -> StepUpdate:
        """Apply the answer to the oldest plan in flight."""
        return apply_output(self._state, output)

    def fail_batch(self, plan: StepPlan | None, given_up: Sequence[StepPlan] = ()) -> list[Request]:
        """After an unexpected error: end with an error all that the plans in flight run, and forget the plans.

        Without a plan (planning itself failed) that is every running sequence. What the plan, and those behind
        it that are `given_up`, should have released is released again: the worker may not have come to it.
        """
        state = self._state
        steps, state.in_flight = state.in_flight, []
        planned = {request.request_id for step in steps for request in step.requests}
        planned.update(plan.row_ids if plan is not None else ())
        batch = [request for request in state.running if plan is None or request.request_id in planned]
        for step in steps:
            state.release_held(step)
        for request in batch:
            state.fail(request)
        failed = [*given_up] if plan is None else [plan, *given_up]
        state.released_ids[:0] = [name for each in failed for name in each.released_ids]
        return batch

    def accept_grammars(self, constrained: Iterable[Request], update: StepUpdate) -> StepUpdate:
        """Let the grammars of these rows know their tokens, and end who is at the end of one.

        The update without those whose token their grammar did not know.
        """
        place = {request.rank: number for number, request in enumerate(update.requests)}
        failed, has_ended = set[int](), False
        for request in constrained:
            number = place.get(request.rank)
            if number is None or request.grammar is None or request.finish_reason != NOT_ENDED:
                continue
            try:
                maybe_fault("grammar_accept", request.request_id)
                request.grammar.accept(update.token_ids[number])
            except Exception as error:
                self._state.fail_on(request, error)
                failed.add(number)
                continue
            if not request.sampling.eos_token_ids and request.grammar.is_over:
                self._state.end(request, FinishReason.STOP)
                has_ended = True
        if not failed:
            return update._replace(is_plain=False) if has_ended else update
        kept = [number for number in range(len(update.requests)) if number not in failed]
        return update._replace(
            requests=[update.requests[number] for number in kept],
            token_ids=[update.token_ids[number] for number in kept],
            request_ids=[update.request_ids[number] for number in kept],
            is_plain=False,
        )

    @property
    def has_news(self) -> bool:
        """Whether anybody ended, failed, or got or gave back blocks since that was taken."""
        state = self._state
        return bool(state.ended or state.errors or state.kv_cache.has_events)

    def take_ended(self) -> list[Request]:
        """Sequences that ended since the last call, each with its one ending."""
        ended, self._state.ended = self._state.ended, []
        return ended

    def take_errors(self) -> list[tuple[Request, Exception]]:
        """Unexpected errors that a sequence's boundary caught since the last call."""
        errors, self._state.errors = self._state.errors, []
        return errors

    def take_block_events(self) -> BlockEvents:
        """What happened to blocks since the last call."""
        return self._state.kv_cache.take_events()

    def stats(self) -> SchedulerStats:
        """The levels now."""
        state = self._state
        return SchedulerStats(len(state.running), len(state.waiting), state.kv_cache.usage, state.num_preemptions)

    def check(self) -> None:
        """Verify the block counts; BlockCountError when they do not add up."""
        self._state.check()

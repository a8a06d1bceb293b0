"""Decides what one step runs: fills the token budget from the running sequences, then from the waiting queue."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from vllm_obs.engine.errors import RequestFailedError
from vllm_obs.engine.faults import maybe_fault
from vllm_obs.engine.pause_state import PauseState
from vllm_obs.engine.plan import NewRow, StepPlan
from vllm_obs.engine.request import NO_TOKEN, Request, RequestStatus
from vllm_obs.engine.scheduler_state import InFlightStep, SchedulerState
from vllm_obs.telemetry.records import WaitReason

_NO_BLOCKS: list[int] = []
"""One list for all the rows that get no block: a plan is not changed once it is made."""


@dataclass
class StepDecisions:
    """Who came and went with a plan, and why others were left out.

    `left_out_ids` are running sequences, `left_out_reasons` runs parallel; `head_reason` is the waiting
    queue's head's, empty when nobody waits. `grammar_ids` are not in the queue yet: their grammars are compiled.
    """

    admitted_ids: list[str] = field(default_factory=list)
    admitted_cached_tokens: list[int] = field(default_factory=list)
    resumed_ids: list[str] = field(default_factory=list)
    preempted_ids: list[str] = field(default_factory=list)
    left_out_ids: list[str] = field(default_factory=list)
    left_out_reasons: list[WaitReason] = field(default_factory=list)
    head_reason: WaitReason | Literal[""] = ""
    grammar_ids: list[str] = field(default_factory=list)

    def leave_out(self, requests: Iterable[Request], reason: WaitReason) -> None:
        """Write the reason of running sequences that this step does not run."""
        for request in requests:
            self.left_out_ids.append(request.request_id)
            self.left_out_reasons.append(reason)


class ScheduledStep(NamedTuple):
    """A plan for the executor, the decisions behind it for the record, and the rows to sample under a grammar."""

    plan: StepPlan
    decisions: StepDecisions
    constrained: list[Request]


class StepPlanner:
    """One step's plan in the making. It knows no phases, only how many tokens each sequence still needs."""

    def __init__(self, state: SchedulerState, step: int) -> None:
        self._state = state
        self._kv_cache = state.kv_cache
        self._budget = state.limits.max_num_batched_tokens
        self._is_pipelined = state.limits.num_steps_in_flight > 1
        self._max_rows = self._share_of_rows() if self._is_pipelined else state.limits.max_num_seqs
        self._busy_ids = state.in_flight_ids() if self._is_pipelined else set()
        self._decisions = StepDecisions()
        self._step = step
        self._admitted: list[Request] = []
        self._new_rows: list[NewRow] = []
        self._new_num_tokens: list[int] = []
        self._running: list[Request] = []
        self._running_new_blocks: list[list[int]] = []
        self._running_num_computed: list[int] = []
        self._running_last_token_ids: list[int] = []
        self._running_num_tokens: list[int] = []
        self._running_chunks: list[tuple[Request, int]] = []

    def plan(self) -> ScheduledStep:
        """Make the plan; counts of computed tokens advance as if it had run already."""
        state = self._state
        if state.suspects:
            self._send_back()
        if state.unready:
            state.queue_ready()
            self._decisions.grammar_ids = list(state.unready)
        if state.pause == PauseState.ALL:
            self._leave_out(state.running, "paused")
        else:
            self._plan_running()
        self._plan_waiting()
        plan, constrained = self._build(), list[Request]()
        if plan.num_rows:
            step = self._launch(plan)
            state.in_flight.append(step)
            if state.has_grammars:
                constrained = [request for request in step.sampled if request.grammar is not None]
        return ScheduledStep(plan, self._decisions, constrained)

    def _send_back(self) -> None:
        """Preempt the suspects that still run. Nobody is admitted beside them, as beside any preemption."""
        state = self._state
        suspects, state.suspects = state.suspects, []
        for request in suspects:
            if request.status == RequestStatus.RUNNING:
                state.preempt(request)
                self._decisions.preempted_ids.append(request.request_id)

    def _launch(self, plan: StepPlan) -> InFlightStep:
        """Note which rows the step samples: those of which it computes the last token, known or awaited."""
        sampled, chunks = list[Request](), list[tuple[Request, int]]()
        for request in self._admitted:
            if request.num_computed_tokens == request.num_planned_tokens:
                request.num_planned_tokens += 1
                sampled.append(request)
            else:
                chunks.append((request, request.num_computed_tokens))
        decoding = self._running
        if self._running_chunks:
            unfinished = {request.rank for request, _ in self._running_chunks}
            decoding = [request for request in decoding if request.rank not in unfinished]
        sampled += decoding
        chunks += self._running_chunks
        sampled_ids = [request.request_id for request in sampled] if chunks else plan.row_ids
        return InFlightStep(self._step, sampled, sampled_ids, chunks)

    def _build(self) -> StepPlan:
        released_ids, self._state.released_ids = self._state.released_ids, []
        return StepPlan(
            step=self._step,
            new_rows=self._new_rows,
            running_ids=[request.request_id for request in self._running],
            running_new_blocks=self._running_new_blocks,
            running_num_computed_tokens=self._running_num_computed,
            running_last_token_ids=self._running_last_token_ids,
            num_scheduled_tokens=self._new_num_tokens + self._running_num_tokens,
            released_ids=released_ids,
        )

    def _plan_running(self) -> None:
        """Serve the running in rank order. Victims of preemption leave the list at its tail, ahead of the loop.

        The hot loop of planning: where no other step is under way a decode that needs no block costs a few
        attributes and no call.
        """
        running, rows, budget = self._state.running, self._running, self._budget
        row_computed, row_last = self._running_num_computed, self._running_last_token_ids
        is_alone = not (self._is_pipelined or self._state.in_flight)
        failed: list[tuple[Request, Exception]] = []
        for request in running:
            num_computed = request.num_computed_tokens
            num_end = num_computed + 1
            if is_alone and num_end == request.num_planned_tokens and num_end <= request.num_slots and budget:
                rows.append(request)
                row_computed.append(num_computed)
                row_last.append(request.last_token_id)
                request.num_computed_tokens = num_end
                request.num_planned_tokens = num_end + 1
                budget -= 1
                continue
            if not budget:
                self._leave_out(running[running.index(request) :], "token_budget")
                break
            try:
                budget -= self._plan_row(request, budget)
            except Exception as error:
                failed.append((request, error))
        self._fill_decodes()
        self._budget = budget
        for request, cause in failed:
            self._state.fail_on(request, cause)

    def _fill_decodes(self) -> None:
        """The columns that are the same for all rows that only decode, up to the last row."""
        num_more = len(self._running) - len(self._running_num_tokens)
        self._running_num_tokens += [1] * num_more
        self._running_new_blocks += [_NO_BLOCKS] * num_more

    def _plan_row(self, request: Request, budget: int) -> int:
        """Plan the next tokens of a running sequence, `budget` at most: how many; 0 where it has to sit out."""
        if self._is_pipelined and self._sits_out(request):
            return 0
        num_planned, num_computed = request.num_planned_tokens, request.num_computed_tokens
        if self._state.in_flight and num_planned >= request.max_num_tokens:
            self._decisions.leave_out([request], "step_in_progress")
            return 0
        num_new = min(num_planned - num_computed, budget)
        num_end = num_computed + num_new
        new_blocks = _NO_BLOCKS
        if num_end > request.num_slots:
            grown = self._grow(request, num_new)
            if grown is None:
                return 0
            new_blocks = grown
        self._fill_decodes()
        self._running.append(request)
        self._running_new_blocks.append(new_blocks)
        self._running_num_computed.append(num_computed)
        self._running_num_tokens.append(num_new)
        is_told = request.num_sent_tokens <= num_computed < request.num_tokens
        self._running_last_token_ids.append(request.token_ids[num_computed] if is_told else NO_TOKEN)
        request.num_computed_tokens = num_end
        if num_end == num_planned:
            request.num_planned_tokens = num_planned + 1
        else:
            self._running_chunks.append((request, num_end))
        return num_new

    def _share_of_rows(self) -> int:
        """How many rows a step has, so that as many steps as the pipeline has stages have all of them."""
        state = self._state
        num_rows = min(len(state.running) + len(state.waiting), state.limits.max_num_seqs)
        return max(1, -(-num_rows // state.limits.num_steps_in_flight))

    def _sits_out(self, request: Request) -> bool:
        """Whether its last token is still being made, by a step in flight, or it is left for the next step."""
        if request.num_planned_tokens > request.num_tokens:
            return True
        if len(self._running) < self._max_rows:
            return False
        self._leave_out([request], "step_in_progress")
        return True

    def _leave_out(self, requests: list[Request], reason: WaitReason) -> None:
        """Write the reason, but of those that a step in flight runs: in a pipeline they lose nothing."""
        if self._busy_ids:
            requests = [request for request in requests if request.request_id not in self._busy_ids]
        self._decisions.leave_out(requests, reason)

    def _grow(self, request: Request, num_new: int) -> list[int] | None:
        """Blocks for the next tokens, preempting from the tail; None when the sequence itself had to stay out."""
        state, decisions = self._state, self._decisions
        try:
            state.require_room(request.num_computed_tokens + num_new)
        except RequestFailedError:
            if request.num_planned_tokens == request.num_tokens:
                raise
            decisions.leave_out([request], "step_in_progress")  # the awaited token may be its last
            return None
        num_needed = self._kv_cache.num_blocks_for(num_new)
        while (new_blocks := self._kv_cache.allocate_slots(request, num_new)) is None:
            if state.num_held_blocks >= num_needed:
                self._leave_out([request], "kv_blocks")
                return None
            victim = state.running[-1]
            state.preempt(victim)
            decisions.preempted_ids.append(victim.request_id)
            if victim is request:
                return None
        return new_blocks

    def _plan_waiting(self) -> None:
        """Admit from the head of the queue until somebody has to wait; only that head's reason is written."""
        state = self._state
        while state.waiting:
            request = state.waiting.peek()
            try:
                reason = self._why_wait(request) or self._try_admit(request)
            except Exception as error:
                state.fail_on(request, error)
                continue
            if reason:
                self._decisions.head_reason = reason
                return

    def _why_wait(self, request: Request) -> WaitReason | None:
        state = self._state
        if state.pause != PauseState.NONE:
            return "paused"
        if self._decisions.preempted_ids:
            is_victim = request.request_id in self._decisions.preempted_ids
            return "priority" if is_victim and state.limits.is_priority_policy else "kv_blocks"
        if len(state.running) >= state.limits.max_num_seqs:
            return "max_num_seqs"
        if len(self._running) + len(self._admitted) >= self._max_rows:
            return "step_in_progress"
        return None if self._budget else "token_budget"

    def _try_admit(self, request: Request) -> WaitReason | None:
        """Admit the head of the queue, or say why not.

        Its whole sequence must fit, so that it does not start what others cannot let it finish; one that was
        preempted comes back only when each running sequence could grow by a block beside it.
        """
        maybe_fault("scheduler", request.request_id)
        state, kv_cache = self._state, self._kv_cache
        state.require_room(request.num_tokens)
        hits = kv_cache.get_computed_blocks(request)
        num_computed = len(hits) * kv_cache.block_size
        num_new = request.num_tokens - num_computed
        if num_new > self._budget and not state.limits.enable_chunked_prefill:
            return "token_budget"
        if not kv_cache.can_hold(request, hits, len(state.running) if request.num_preemptions else 0):
            return "kv_blocks"
        num_new = min(num_new, self._budget)
        allocated = kv_cache.allocate_slots(request, num_new, hits)
        assert allocated is not None, "what can be held can be allocated"
        self._add_new_row(request, num_computed, num_new)
        return None

    def _add_new_row(self, request: Request, num_computed: int, num_new: int) -> None:
        if request.status == RequestStatus.PREEMPTED:
            self._decisions.resumed_ids.append(request.request_id)
        else:
            self._decisions.admitted_ids.append(request.request_id)
            self._decisions.admitted_cached_tokens.append(num_computed)
        self._state.admit(request, num_computed)
        self._new_num_tokens.append(num_new)
        self._new_rows.append(
            NewRow(
                request_id=request.request_id,
                token_ids=request.known_token_ids(),
                num_prompt_tokens=request.num_prompt_tokens,
                sampling=request.sampling,
                block_ids=list(request.block_ids),
                num_computed_tokens=num_computed,
            )
        )
        self._admitted.append(request)
        self._budget -= num_new
        request.num_computed_tokens += num_new

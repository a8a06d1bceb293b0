"""Decides what one step runs: fills the token budget from the running sequences, then from the waiting queue."""

from typing import NamedTuple

from vllm_obs.engine.errors import RequestFailedError
from vllm_obs.engine.faults import maybe_fault
from vllm_obs.engine.pause_state import PauseState
from vllm_obs.engine.plan import NewRow, StepPlan
from vllm_obs.engine.request import NO_TOKEN, Request, RequestStatus
from vllm_obs.engine.running_rows import RunningRows
from vllm_obs.engine.scheduler_state import InFlightStep, SchedulerState
from vllm_obs.engine.step_decisions import StepDecisions
from vllm_obs.engine.step_shares import prefill_share, rows_share
from vllm_obs.telemetry.records import WaitReason


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
        self._max_rows = rows_share(state) if self._is_pipelined else state.limits.max_num_seqs
        self._busy_ids = state.in_flight_ids() if self._is_pipelined else set()
        self._decisions = StepDecisions()
        self._step = step
        self._prefill_share = prefill_share(state)
        self._admitted: list[Request] = []
        self._new_rows: list[NewRow] = []
        self._new_num_tokens: list[int] = []
        self._rows = RunningRows()
        self._stopped: list[Request] = []
        self._num_coming_blocks = 0

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
        decoding = self._rows.requests
        if self._rows.chunks:
            unfinished = {request.rank for request, _ in self._rows.chunks}
            decoding = [request for request in decoding if request.rank not in unfinished]
        sampled += decoding
        chunks += self._rows.chunks
        self._state.num_sampled = len(sampled)
        sampled_ids = [request.request_id for request in sampled] if chunks else plan.row_ids
        return InFlightStep(self._step, sampled, sampled_ids, chunks)

    def _build(self) -> StepPlan:
        rows, released_ids = self._rows, self._state.released_ids
        self._state.released_ids = []
        return StepPlan(
            step=self._step,
            new_rows=self._new_rows,
            running_ids=[request.request_id for request in rows.requests],
            running_new_blocks=rows.new_blocks,
            running_num_computed_tokens=rows.num_computed,
            running_last_token_ids=rows.last_token_ids,
            num_scheduled_tokens=self._new_num_tokens + rows.num_tokens,
            released_ids=released_ids,
        )

    def _plan_running(self) -> None:
        """Serve the running in rank order. Victims of preemption leave the list at its tail, ahead of the loop.

        The hot loop of planning: outside a pipeline a decode that needs no block costs a few attributes and no
        call. With a step under way its token may be awaited, and it runs unless that will be its last.
        """
        running, rows, budget = self._state.running, self._rows.requests, self._budget
        row_computed, row_last = self._rows.num_computed, self._rows.last_token_ids
        has_own_steps, is_alone = not self._is_pipelined, not self._state.in_flight
        failed: list[tuple[Request, Exception]] = []
        for request in running:
            num_computed = request.num_computed_tokens
            num_end = num_computed + 1
            if (
                has_own_steps
                and num_end == request.num_planned_tokens
                and num_end <= request.num_slots
                and budget
                and (is_alone or num_end < request.max_num_tokens)
            ):
                rows.append(request)
                row_computed.append(num_computed)
                row_last.append(request.last_token_id if is_alone or num_end == request.num_tokens else NO_TOKEN)
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
        running += reversed(self._stopped)
        self._rows.fill_decodes()
        self._budget = budget
        for request, cause in failed:
            self._state.fail_on(request, cause)

    def _plan_row(self, request: Request, budget: int) -> int:
        """Plan the next tokens of a running sequence, `budget` at most: how many; 0 where it has to sit out."""
        if self._is_pipelined and self._sits_out(request):
            return 0
        num_planned, num_computed = request.num_planned_tokens, request.num_computed_tokens
        is_awaited = num_planned > request.num_tokens
        if self._state.in_flight and is_awaited and num_planned >= request.max_num_tokens:
            self._await_last(request)
            return 0
        num_new = num_planned - num_computed
        is_prefill = num_new > 1
        if is_prefill:
            num_new = min(num_new, budget, self._prefill_share)
            if not num_new:
                self._leave_out([request], "prefill_share")
                return 0
        new_blocks = None
        if num_computed + num_new > request.num_slots:
            new_blocks = self._grow(request, num_new)
            if new_blocks is None:
                return 0
        self._rows.add(request, num_new, new_blocks)
        if is_prefill:
            self._prefill_share -= num_new
        return num_new

    def _sits_out(self, request: Request) -> bool:
        """Whether its last token is still being made, by a step in flight, or it is left for the next step."""
        if request.num_planned_tokens > request.num_tokens:
            return True
        if len(self._rows.requests) < self._max_rows:
            return False
        self._leave_out([request], "step_in_progress")
        return True

    def _leave_out(self, requests: list[Request], reason: WaitReason) -> None:
        """Write the reason, but of those that a step in flight runs: in a pipeline they lose nothing."""
        if self._busy_ids:
            requests = [request for request in requests if request.request_id not in self._busy_ids]
        self._decisions.leave_out(requests, reason)

    def _await_last(self, request: Request) -> None:
        """Its awaited token may be its last. Where that is so all the time, it is not held up by it."""
        if not self._state.limits.is_ahead:
            self._decisions.leave_out([request], "step_in_progress")

    def _grow(self, request: Request, num_new: int) -> list[int] | None:
        """Blocks for the next tokens, preempting from the tail; None when the sequence itself had to stay out."""
        state, decisions = self._state, self._decisions
        try:
            state.require_room(request.num_computed_tokens + num_new)
        except RequestFailedError:
            if request.num_planned_tokens == request.num_tokens:
                raise
            self._await_last(request)
            return None
        while (new_blocks := self._kv_cache.allocate_slots(request, num_new)) is None:
            num_missing = self._kv_cache.num_missing_for(request, num_new)
            if state.num_held_blocks + self._num_coming_blocks >= num_missing:
                self._leave_out([request], "kv_blocks")
                return None
            victim = state.running[-1]
            if victim.num_planned_tokens > victim.num_tokens:
                self._stop_short(victim)
            else:
                state.preempt(victim)
                decisions.preempted_ids.append(victim.request_id)
            if victim is request:
                return None
        return new_blocks

    def _stop_short(self, victim: Request) -> None:
        """Keep the last in rank, whose token is being made, out of this step: the next may preempt it.

        Who needs its blocks would wait for them until then in any case, and preempted now it would lose the token:
        one that comes back, and has to go again, all of what it came for.
        """
        self._stopped.append(self._state.running.pop())
        self._num_coming_blocks += len(victim.block_ids)
        self._leave_out([victim], "kv_blocks")

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
        if self._stopped:
            return "kv_blocks"
        if len(state.running) >= state.limits.max_num_seqs:
            return "max_num_seqs"
        if len(self._rows.requests) + len(self._admitted) >= self._max_rows:
            return "step_in_progress"
        if not self._budget:
            return "token_budget"
        return None if self._prefill_share else "prefill_share"

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
        num_new = min(num_new, self._budget, self._prefill_share)
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
        self._prefill_share -= num_new
        request.num_computed_tokens += num_new

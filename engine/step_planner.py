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
        self._constrained: list[Request] = []
        self._new_rows: list[NewRow] = []
        self._new_num_tokens: list[int] = []
        self._running: list[Request] = []
        self._running_new_blocks: list[list[int]] = []
        self._running_num_computed: list[int] = []
        self._running_num_tokens: list[int] = []

    def plan(self) -> ScheduledStep:
        """Make the plan; counts of computed tokens advance as if it had run already."""
        state = self._state
        if state.unready:
            state.queue_ready()
            self._decisions.grammar_ids = list(state.unready)
        if state.pause == PauseState.ALL:
            self._leave_out(state.running, "paused")
        else:
            self._plan_running()
        self._plan_waiting()
        if rows := self._admitted + self._running:
            state.in_flight.append(self._launch(rows))
        return ScheduledStep(self._build(), self._decisions, self._constrained)

    def _launch(self, rows: list[Request]) -> InFlightStep:
        """Note which rows the step samples: those of which it computes the last token, known or awaited."""
        sampled = [row for row in rows if row.num_computed_tokens == row.num_planned_tokens]
        chunks: list[tuple[Request, int]] = []
        if len(sampled) < len(rows):
            unfinished = [row for row in rows if row.num_computed_tokens < row.num_planned_tokens]
            chunks = [(row, row.num_computed_tokens) for row in unfinished]
        for request in sampled:
            request.num_planned_tokens += 1
            if request.grammar is not None:
                self._constrained.append(request)
        return InFlightStep(self._step, sampled, chunks)

    def _build(self) -> StepPlan:
        released_ids, self._state.released_ids = self._state.released_ids, []
        return StepPlan(
            step=self._step,
            new_rows=self._new_rows,
            running_ids=[request.request_id for request in self._running],
            running_new_blocks=self._running_new_blocks,
            running_num_computed_tokens=self._running_num_computed,
            running_last_token_ids=[
                row.token_ids[computed] if row.num_sent_tokens <= computed < row.num_tokens else NO_TOKEN
                for row, computed in zip(self._running, self._running_num_computed, strict=True)
            ],
            num_scheduled_tokens=self._new_num_tokens + self._running_num_tokens,
            released_ids=released_ids,
        )

    def _plan_running(self) -> None:
        """Serve the running in rank order. Victims of preemption leave the list at its tail, ahead of the loop.

        The hot loop of planning: a decode that needs no block costs a few attribute reads and no call.
        """
        running, in_flight, budget = self._state.running, bool(self._state.in_flight), self._budget
        rows, row_blocks = self._running, self._running_new_blocks
        row_computed, row_tokens = self._running_num_computed, self._running_num_tokens
        failed: list[tuple[Request, Exception]] = []
        is_pipelined = self._is_pipelined
        for request in running:
            if not budget:
                self._leave_out(running[running.index(request) :], "token_budget")
                break
            if is_pipelined and self._sits_out(request):
                continue
            num_planned, num_computed = request.num_planned_tokens, request.num_computed_tokens
            if in_flight and num_planned >= request.max_num_tokens:
                self._decisions.leave_out([request], "step_in_progress")
                continue
            num_new = num_planned - num_computed
            if num_new > budget:
                num_new = budget
            new_blocks: list[int] | None = _NO_BLOCKS
            if num_computed + num_new > request.num_slots:
                try:
                    new_blocks = self._grow(request, num_new)
                except Exception as error:
                    failed.append((request, error))
                    continue
                if new_blocks is None:
                    continue
            rows.append(request)
            row_blocks.append(new_blocks)  # type: ignore[arg-type]  # never None here
            row_computed.append(num_computed)
            row_tokens.append(num_new)
            request.num_computed_tokens = num_computed + num_new
            budget -= num_new
        self._budget = budget
        for request, cause in failed:
            self._state.fail_on(request, cause)

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

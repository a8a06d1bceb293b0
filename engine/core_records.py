"""Turns what the scheduler did into records: the facts that every view is made from."""

from vllm_obs.engine.block_pool import MARK_BYTES
from vllm_obs.engine.core_keyframes import Keyframes
from vllm_obs.engine.kv_cache import BlockEvents
from vllm_obs.engine.messages import EngineCoreRequest, FinishReason
from vllm_obs.engine.request import Request
from vllm_obs.engine.scheduler import Scheduler
from vllm_obs.engine.step_answer import StepUpdate
from vllm_obs.engine.step_planner import ScheduledStep
from vllm_obs.telemetry.recorder import Recorder
from vllm_obs.telemetry.records import (
    BlocksCached,
    BlocksChanged,
    RequestReleased,
    RequestTaken,
    StepAnswered,
    StepFailed,
    StepPlanned,
)

_MAX_ERROR_CHARS = 200


class CoreRecords:
    """Writes the core's records; every moment is passed in (monotonic ns)."""

    def __init__(self, recorder: Recorder) -> None:
        self._record = recorder.record
        self._keyframes = Keyframes()

    def taken(self, request: Request, message: EngineCoreRequest) -> None:
        """A sequence was queued."""
        self._record(
            RequestTaken(
                request_id=request.request_id,
                client_index=request.client_index,
                submitted_at=message.submitted_at,
                taken_at=request.taken_at,
                num_prompt_tokens=request.num_prompt_tokens,
                max_tokens=request.sampling.max_tokens,
                priority=message.priority,
                awaits_grammar=request.grammar is not None and not request.grammar.is_ready,
                skips_cache=request.passes_whole_prompt,
            )
        )

    def planned(self, scheduled: ScheduledStep, scheduler: Scheduler, begun_at: int, ended_at: int) -> None:
        """A step was planned, with what the scheduler decided and the levels afterwards."""
        plan, decisions, pool = scheduled.plan, scheduled.decisions, scheduler.kv_cache.pool
        new_rows = plan.new_rows
        self._record(
            StepPlanned(
                step=plan.step,
                schedule_begun_at=begun_at,
                schedule_ended_at=ended_at,
                request_ids=plan.row_ids,
                num_scheduled_tokens=plan.num_scheduled_tokens,
                num_computed_tokens=[row.num_computed_tokens for row in new_rows]
                + plan.running_num_computed_tokens,
                num_new_blocks=[len(row.block_ids) for row in new_rows] + list(map(len, plan.running_new_blocks)),
                admitted_ids=decisions.admitted_ids,
                admitted_cached_tokens=decisions.admitted_cached_tokens,
                resumed_ids=decisions.resumed_ids,
                preempted_ids=decisions.preempted_ids,
                left_out_ids=decisions.left_out_ids,
                left_out_reasons=list(decisions.left_out_reasons),
                head_reason=decisions.head_reason,
                num_running=len(scheduler.running),
                num_waiting=scheduler.num_waiting,
                num_free_blocks=pool.num_free,
                num_cached_blocks=pool.num_cached,
                num_active_blocks=pool.num_active,
                grammar_ids=decisions.grammar_ids,
            )
        )

    def answered(self, step: int, moments: tuple[int, int, int], update: StepUpdate) -> None:
        """A step's results were applied; `moments` are executed_at, sampled_at, updated_at."""
        executed_at, sampled_at, updated_at = moments
        self._record(
            StepAnswered(
                step=step,
                executed_at=executed_at,
                sampled_at=sampled_at,
                updated_at=updated_at,
                request_ids=update.request_ids,
                num_new_tokens=_num_new_tokens(update),
                num_wasted_rows=update.num_wasted_rows,
            )
        )

    def failed(self, step: int, error: Exception, failed_at: int, batch: list[Request]) -> None:
        """A step broke off and its batch was failed."""
        text = f"{type(error).__name__}: {error}"[:_MAX_ERROR_CHARS]
        self._record(StepFailed(step, text, failed_at, [request.request_id for request in batch]))

    def released(self, request: Request, released_at: int) -> None:
        """A sequence left the scheduler."""
        self._record(
            RequestReleased(
                request_id=request.request_id,
                finish_reason=FinishReason(request.finish_reason).label,
                released_at=released_at,
                num_output_tokens=request.num_kept_tokens,
                num_computed_tokens=request.num_computed_tokens,
                num_cached_tokens=request.num_cached_tokens,
                num_preemptions=request.num_preemptions,
            )
        )

    def blocks(self, step: int, events: BlockEvents) -> None:
        """Blocks changed hands: one record for all sequences they changed for, two for the prefix cache."""
        if events.allocated or events.freed:
            self._record(_blocks_changed(step, events))
        if events.evicted:
            self._record(_blocks_cached(step, events.evicted, True))
        if events.cached:
            self._record(_blocks_cached(step, events.cached, False))

    def keyframes(self, step: int, scheduler: Scheduler) -> None:
        """The next slice of what is true after a step, for a reader that lost what led to it."""
        for keyframe in self._keyframes.after(step, scheduler):
            self._record(keyframe)


def _num_new_tokens(update: StepUpdate) -> list[int]:
    """One for each row, none where a prompt was only scored."""
    if update.is_plain:
        return [1] * len(update.requests)
    return [1 if request.sampling.max_tokens else 0 for request in update.requests]


def _blocks_changed(step: int, events: BlockEvents) -> BlocksChanged:
    num_freed, num_allocated = len(events.freed), len(events.allocated)
    return BlocksChanged(
        step=step,
        request_ids=[row[0] for row in events.allocated] + [row[0] for row in events.freed],
        allocated=[row[1] for row in events.allocated] + [[]] * num_freed,
        freed=[[]] * num_allocated + [row[1] for row in events.freed],
        num_hit_blocks=[row[2] for row in events.allocated] + [0] * num_freed,
    )


def _blocks_cached(step: int, changed: list[tuple[int, bytes]], is_evicted: bool) -> BlocksCached:
    hashes = [block_hash[:MARK_BYTES] for _, block_hash in changed]
    return BlocksCached(step, [block_id for block_id, _ in changed], hashes, is_evicted)

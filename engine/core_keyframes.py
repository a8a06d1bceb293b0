"""Keyframes: a rolling slice of the blocks and live sequences, by which a reader that lost records catches up."""

from collections.abc import Iterator

from vllm_obs.engine.block_pool import BlockPool
from vllm_obs.engine.request import Request, RequestStatus
from vllm_obs.engine.scheduler import Scheduler
from vllm_obs.telemetry.records import BlocksKeyframe, RequestKeyframe

TURN_STEPS = 4
"""Each so many steps a slice: a record costs by its number more than by its length, here and where it is read."""
BLOCKS_A_TURN = 256
REQUESTS_A_TURN = 2
TABLE_BLOCKS_A_TURN = 1024
"""What the tables of a turn's sequences may hold on average: after a longer one the next has to wait."""


class Keyframes:
    """Goes round the pool and round the live sequences, a little every few steps: a few microseconds a step."""

    def __init__(self) -> None:
        self._num_steps = 0
        self._next_block = 0
        self._waiting_ids: list[str] = []
        self._allowance = 0

    def after(self, step: int, scheduler: Scheduler) -> Iterator[BlocksKeyframe | RequestKeyframe]:
        """The next slices, as things are after `step`, where it is time for them."""
        self._num_steps += 1
        if self._num_steps % TURN_STEPS != 1:
            return
        yield self._blocks(step, scheduler.kv_cache.pool)
        self._allowance = min(self._allowance, 0) + TABLE_BLOCKS_A_TURN
        if not self._waiting_ids:
            self._waiting_ids = scheduler.live_ids()[::-1]
        for _ in range(REQUESTS_A_TURN):
            request = self._next_request(scheduler) if self._allowance > 0 else None
            if request is None:
                return
            self._allowance -= len(request.block_ids)
            yield _keyframe_of(step, request)

    def _blocks(self, step: int, pool: BlockPool) -> BlocksKeyframe:
        first = self._next_block if self._next_block < pool.num_blocks else 0
        self._next_block = first + BLOCKS_A_TURN
        return BlocksKeyframe(step, first, *pool.slice(first, self._next_block))

    def _next_request(self, scheduler: Scheduler) -> Request | None:
        """The live sequence whose turn it is; None when the round is over."""
        while self._waiting_ids:
            request = scheduler.find(self._waiting_ids.pop())
            if request is not None and not scheduler.is_held(request.request_id):
                return request
        return None


def _keyframe_of(step: int, request: Request) -> RequestKeyframe:
    return RequestKeyframe(
        step=step,
        request_id=request.request_id,
        is_running=request.status == RequestStatus.RUNNING,
        block_ids=list(request.block_ids),
        num_computed_tokens=request.num_computed_tokens,
        num_prompt_tokens=request.num_prompt_tokens,
        num_output_tokens=request.num_kept_tokens,
    )

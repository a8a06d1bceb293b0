"""CoreQueue: the core's last word on who may wait; front ends refuse before, each by what it has sent itself."""

from vllm_obs.engine.errors import RequestError
from vllm_obs.engine.pause_state import PauseState
from vllm_obs.engine.queue_bound import REASON_OF, QueueBound, QueueLimits, QueueLoad
from vllm_obs.engine.scheduler import Scheduler


class CoreQueue:
    """The sequences of all front ends that the scheduler has and no step has taken yet."""

    def __init__(self, limits: QueueLimits, scheduler: Scheduler) -> None:
        self._bound = QueueBound(limits)
        self._scheduler = scheduler

    def __len__(self) -> int:
        return len(self._bound)

    @property
    def is_bounded(self) -> bool:
        """Whether front ends count, and so must be told who leaves."""
        return self._bound.limits.is_bounded

    def require_room(self, num_tokens: int) -> None:
        """RequestError where one more of so many prompt tokens would be too many."""
        if self.is_bounded and (full := self._bound.why_full([num_tokens], self._load())):
            raise RequestError(f"The queue is full ({full}).", reason=REASON_OF[full])

    def add(self, request_id: str, num_tokens: int, is_held: bool) -> None:
        """The scheduler has it."""
        self._bound.add(request_id, num_tokens, is_held)

    def remove(self, request_id: str) -> None:
        """It was scheduled, or has ended; harmless where it did not wait."""
        self._bound.remove(request_id)

    def _load(self) -> QueueLoad:
        scheduler = self._scheduler
        admits = scheduler.pause == PauseState.NONE and scheduler.num_waiting == len(self._bound)
        return QueueLoad(
            len(scheduler.running) if admits else self._bound.limits.max_num_seqs,  # who was preempted goes first
            sum(max(1, request.num_tokens - request.num_computed_tokens) for request in scheduler.running),
            scheduler.kv_cache.pool.num_available,
        )

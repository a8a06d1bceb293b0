"""The scheduler's sequences by state, and the moves between states that keep queues, blocks and plans in step."""

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.errors import ConfigError, RequestError, RequestFailedError
from vllm_obs.engine.faults import maybe_fault
from vllm_obs.engine.kv_cache import KVCacheManager
from vllm_obs.engine.messages import FinishReason
from vllm_obs.engine.pause_state import PauseState
from vllm_obs.engine.request import NO_TOKEN, Grammar, Request, RequestStatus
from vllm_obs.engine.request_queue import RequestQueue

INTERNAL_ERROR = "The request failed inside the engine."

_by_rank = attrgetter("rank")


def _grammar_of(request: Request) -> Grammar:
    assert request.grammar is not None, f"{request.request_id} has no grammar"
    return request.grammar


class SchedulerLimits(NamedTuple):
    """The limits of one step and of one sequence, and how many steps fill the stages of a pipeline.

    `is_ahead` where a step is planned before the one before it has answered.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    enable_chunked_prefill: bool
    is_priority_policy: bool
    max_num_mixed_prefill_tokens: int
    mixed_prefill_tokens_a_decode: float
    num_steps_in_flight: int = 1
    is_ahead: bool = False

    @classmethod
    def from_config(cls, config: VllmConfig) -> "SchedulerLimits":
        """Checked limits; ConfigError where no sequence could ever run, or one could get stuck."""
        scheduler, max_model_len = config.scheduler, config.model.max_model_len
        if scheduler.max_num_seqs < 1 or scheduler.max_num_batched_tokens < 1:
            raise ConfigError(
                f"max_num_seqs is {scheduler.max_num_seqs} and max_num_batched_tokens is "
                f"{scheduler.max_num_batched_tokens}; both must be at least 1"
            )
        if not scheduler.enable_chunked_prefill and scheduler.max_num_batched_tokens < max_model_len:
            raise ConfigError(
                f"without chunked prefill a prompt runs whole: max_num_batched_tokens is "
                f"{scheduler.max_num_batched_tokens} and must be at least max_model_len, {max_model_len}"
            )
        return cls(
            max_num_seqs=scheduler.max_num_seqs,
            max_num_batched_tokens=scheduler.max_num_batched_tokens,
            max_model_len=max_model_len,
            enable_chunked_prefill=scheduler.enable_chunked_prefill,
            is_priority_policy=scheduler.policy == "priority",
            mixed_prefill_tokens_a_decode=scheduler.mixed_prefill_tokens_a_decode,
            max_num_mixed_prefill_tokens=scheduler.max_num_mixed_prefill_tokens
            or scheduler.max_num_batched_tokens,
            num_steps_in_flight=config.parallel.pipeline_parallel_size,
            is_ahead=scheduler.async_scheduling,
        )


@dataclass
class InFlightStep:
    """A plan that has not answered. `sampled` rows give a token, `chunks` rows only get computed up to a count.

    `sampled_ids` are the ids of those that give one. `dropped` are rows whose sequence has left since; `held` are
    (request id, table) to release on the answer.
    """

    step: int
    sampled: list[Request]
    sampled_ids: list[str]
    chunks: list[tuple[Request, int]]
    dropped: set[str] = field(default_factory=set)
    held: list[tuple[str, list[int]]] = field(default_factory=list)

    def has_row(self, request_id: str) -> bool:
        """Whether the plan names a sequence, which may have left since."""
        return request_id in self.sampled_ids or any(request_id == each.request_id for each, _ in self.chunks)

    @property
    def requests(self) -> list[Request]:
        """The sequence of every row, whether it has left or not."""
        return self.sampled + [request for request, _ in self.chunks]


class SchedulerState:
    """Every live sequence, in `requests` by id and either in `waiting`, in `running` or in `unready`.

    `unready` sequences, by id, cannot be queued before their grammars are compiled; they hold up nobody.
    `running` is sorted by rank: steps serve its head first and preemption takes its tail. `released_ids` goes
    out with the next plan, which also sends the `suspects` back to be computed anew. `ended` collects sequences
    with their ending until the core takes them, `errors` what a sequence's boundary caught.
    """

    def __init__(self, limits: SchedulerLimits, kv_cache: KVCacheManager) -> None:
        self.limits = limits
        self.kv_cache = kv_cache
        self.requests: dict[str, Request] = {}
        self.waiting = RequestQueue()
        self.unready: dict[str, Request] = {}
        self.has_grammars = False
        """Whether anybody ever had one."""
        self.has_scored = False
        """Whether anybody was ever only to be scored."""
        self.running: list[Request] = []
        self.in_flight: list[InFlightStep] = []
        self.num_sampled = 0
        """How many sequences the last plan with rows gives a token."""
        self.released_ids: list[str] = []
        self.suspects: list[Request] = []
        self.ended: list[Request] = []
        self.errors: list[tuple[Request, Exception]] = []
        self.pause = PauseState.NONE
        self.num_preemptions = 0

    @property
    def num_held_blocks(self) -> int:
        """Blocks that come back when the plans in flight have answered (shared ones counted too)."""
        return sum(len(table) for step in self.in_flight for _, table in step.held)

    def in_flight_ids(self) -> set[str]:
        """The sequences that a plan in flight runs, without those that have left it."""
        return {
            request.request_id
            for step in self.in_flight
            for request in step.requests
            if request.request_id not in step.dropped
        }

    def last_step_of(self, request_id: str) -> int:
        """The newest plan in flight that runs a sequence; 0 where none does."""
        for step in reversed(self.in_flight):
            if step.has_row(request_id) and request_id not in step.dropped:
                return step.step
        return 0

    def _is_in_flight(self, request_id: str) -> bool:
        """Whether a plan in flight reads and writes a sequence's blocks, its result being wanted or not."""
        return any(step.has_row(request_id) for step in self.in_flight)

    def add(self, request: Request) -> None:
        """Queue a new sequence; its id must not be live."""
        assert request.request_id not in self.requests, f"{request.request_id} is live already"
        self.requests[request.request_id] = request
        if not request.sampling.max_tokens:
            self.has_scored = True
        if request.grammar is not None:
            self.has_grammars = True
            self.unready[request.request_id] = request
        else:
            self.waiting.push(request)

    def queue_ready(self) -> None:
        """Queue those whose grammars have been compiled; those that have none after all end."""
        for request in [request for request in self.unready.values() if _grammar_of(request).is_ready]:
            try:
                maybe_fault("grammar", request.request_id)
                _grammar_of(request).begin()
            except Exception as error:
                self.fail_on(request, error)
                continue
            del self.unready[request.request_id]
            self.waiting.push(request)

    def admit(self, request: Request, num_computed_tokens: int) -> None:
        """Move the head of the queue to the running, with its first tokens computed already."""
        head = self.waiting.pop()
        assert head is request, f"{request.request_id} is not the head of the queue"
        if request.num_preemptions == 0:
            request.num_cached_tokens = num_computed_tokens
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = request.num_found_tokens = num_computed_tokens
        request.num_sent_tokens = request.num_tokens
        request.last_token_id = NO_TOKEN
        insort(self.running, request, key=_by_rank)

    def preempt(self, request: Request) -> None:
        """Take a running sequence's blocks; it waits at its rank and will be computed again."""
        self._leave_running(request, self._is_in_flight(request.request_id))
        request.start_over()
        self.num_preemptions += 1
        self.waiting.push(request)

    def end(self, request: Request, reason: FinishReason, stop_token_id: int = -1) -> None:
        """Give a live sequence its one ending."""
        if request.status == RequestStatus.RUNNING:
            self._leave_running(request, bool(self.in_flight))
        elif self.unready.pop(request.request_id, None) is None:
            self.waiting.remove(request)
        del self.requests[request.request_id]
        request.end(reason, stop_token_id)
        self.ended.append(request)

    def fail(self, request: Request, reason: str = "internal_error", message: str = INTERNAL_ERROR) -> None:
        """End a live sequence with an error; `reason` is from the closed set, `message` is for the client."""
        request.error = (reason, message)
        self.end(request, FinishReason.ERROR)

    def suspect(self, request: Request) -> None:
        """A running sequence has no numbers, which may be those who filled blocks that it found.

        The next plan sends it back, to be computed anew without anybody's blocks: then it is its own fault.
        """
        request.trusts_cache = False
        self.suspects.append(request)
        for step in self.in_flight:
            step.dropped.add(request.request_id)

    def forget_blocks_of(self, request_ids: set[str]) -> None:
        """Let nobody find what these have computed, whether they run or have left blocks to plans in flight."""
        for request_id in request_ids & self.requests.keys():
            self.kv_cache.forget(self.requests[request_id].block_ids)
        for step in self.in_flight:
            for request_id, table in step.held:
                if request_id in request_ids:
                    self.kv_cache.forget(table)

    def fail_on(self, request: Request, error: Exception) -> None:
        """End a sequence with what its boundary caught; an unexpected error is kept for the log only.

        A MemoryError is nobody's fault in particular, and goes up.
        """
        if isinstance(error, MemoryError):
            raise error
        if isinstance(error, RequestFailedError | RequestError):
            self.fail(request, error.reason, str(error))
        else:
            self.errors.append((request, error))
            self.fail(request)

    def require_room(self, num_tokens: int) -> None:
        """RequestFailedError when so many tokens of one sequence are more than the whole cache holds."""
        num_needed, num_blocks = self.kv_cache.num_blocks_for(num_tokens), self.kv_cache.pool.num_blocks
        if num_needed > num_blocks:
            raise RequestFailedError(
                f"{num_tokens} tokens need {num_needed} KV cache blocks; the cache has {num_blocks}.",
                "context_length_exceeded",
            )

    def _leave_running(self, request: Request, is_in_flight: bool) -> None:
        del self.running[bisect_left(self.running, request.rank, key=_by_rank)]
        self.released_ids.append(request.request_id)
        table = self.kv_cache.detach(request)
        if not is_in_flight:
            self.kv_cache.release(request.request_id, table)
            return
        self.in_flight[-1].held.append((request.request_id, table))
        for step in self.in_flight:
            step.dropped.add(request.request_id)

    def release_held(self, step: InFlightStep) -> None:
        """Give back what a plan, now answered or given up, kept from being reused."""
        for request_id, table in step.held:
            self.kv_cache.release(request_id, table)
        step.held.clear()

    def check(self) -> None:
        """Verify the block counts against every table in use; BlockCountError when they differ."""
        tables = [request.block_ids for request in self.requests.values()]
        tables.extend(table for step in self.in_flight for _, table in step.held)
        self.kv_cache.check(tables)

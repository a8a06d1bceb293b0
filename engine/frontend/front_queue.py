"""FrontQueue: what one front end has in the engine's queue, so that it can refuse before any work is done."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from vllm_obs.engine.errors import OverloadedError, RequestError
from vllm_obs.engine.frontend.refusal_notice import RefusalNotice
from vllm_obs.engine.messages import EngineCoreOutputs
from vllm_obs.engine.queue_bound import REASON_OF, QueueBound, QueueLimits, QueueLoad

MAX_RETRY_SECONDS = 60
NUM_DEPARTURES = 256
"""How many departures from the queue the drain rate is measured over."""


class FrontQueue:
    """Counts at least what the engine counts, so that what has room here has room there.

    The queues of several engines are one here, with the bounds of all that are there: who chooses among them keeps
    them alike, and an engine refuses for itself what it has no room for.
    A sequence is queued from `admit` until the engine's outputs tell that it was scheduled, and in prefill until
    its first token. One that was ended here counts until the engine has been told. `num_open` gives the sequences
    that have not ended, `clock` monotonic ns. Used from one event loop.
    """

    def __init__(
        self, limits: QueueLimits, num_open: Callable[[], int], clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._limits_of_one = limits
        self._limits = limits
        self._bound = QueueBound(limits)
        self._num_open = num_open
        self._clock = clock
        self._prefilling: dict[str, int] = {}
        self._num_reserved = 0
        self._num_leaving = 0
        self._num_blocks: dict[int, int] = {}
        self._usage: dict[int, float] = {}
        self._departures: deque[int] = deque(maxlen=NUM_DEPARTURES)
        self._begun_at = clock()
        self._notice = RefusalNotice(clock)

    def __len__(self) -> int:
        """How many sequences are queued, as far as is known here."""
        return len(self._bound)

    @property
    def fill(self) -> float:
        """The share of the queue's bounds that is taken, by the fuller of the two; 0 without bounds."""
        limits, bound = self._limits, self._bound
        pairs = ((len(bound), limits.max_num_reqs), (bound.num_tokens, limits.max_num_tokens))
        return max(min(1.0, number / max(most, 1)) if most is not None else 0.0 for number, most in pairs)

    @property
    def kv_cache_usage(self) -> float:
        """The share of the blocks of all engines that is taken."""
        return sum(self._usage.values()) / max(1, len(self._usage))

    def attach(self, num_gpu_blocks: int, engine_index: int = 0) -> None:
        """An engine is ready."""
        self._num_blocks[engine_index], self._usage[engine_index] = num_gpu_blocks, 0.0
        self._bound_all()

    def detach(self, engine_index: int) -> None:
        """An engine has gone; where it was the last the bounds are those of one."""
        self._num_blocks.pop(engine_index, None)
        self._usage.pop(engine_index, None)
        self._bound_all()

    def _bound_all(self) -> None:
        self._limits = self._bound.limits = self._limits_of_one.times(max(1, len(self._num_blocks)))

    def place(self) -> "Place":
        """Room for a request that is not tokenised yet; it must be closed."""
        return Place(self)

    def look(self, num_sequences: int) -> None:
        """OverloadedError where so many more would find no room, whatever their length."""
        self._require_room((), num_sequences)

    def check_ever(self, num_sequences: int) -> None:
        """RequestError where there is never so much room."""
        most = self._limits.max_num_reqs
        if most is not None and num_sequences > most + self._limits.max_num_seqs:
            message = f"{num_sequences} sequences; at most {self._limits.max_num_seqs} run and {most} wait."
            raise RequestError(message, "n", reason="too_many_sequences")

    def reserve(self, num_sequences: int) -> None:
        """Keep room for so many more, or OverloadedError."""
        self.look(num_sequences)
        self._num_reserved += num_sequences

    def release(self, num_sequences: int) -> None:
        """Give back room that was kept."""
        self._num_reserved -= num_sequences

    def admit(self, request_ids: list[str], num_tokens: int, is_held: bool) -> None:
        """Queue all of these, each with so many prompt tokens, or none: OverloadedError."""
        if not self._limits.is_bounded:
            return
        self._require_room([num_tokens] * len(request_ids))
        if not len(self._bound):  # nobody left while nobody waited: that time says nothing about the rate
            self._departures.clear()
            self._begun_at = self._clock()
        for request_id in request_ids:
            self._bound.add(request_id, num_tokens, is_held)

    def saw(self, outputs: EngineCoreOutputs) -> None:
        """Take in what a step's outputs tell; in most steps that is nothing."""
        if outputs.stats is not None:
            self._usage[outputs.engine_index] = outputs.stats.kv_cache_usage
        if not self._limits.is_bounded:
            return
        for request_id in outputs.scheduled_ids:
            num_tokens = self._depart(request_id)
            if num_tokens is not None:
                self._prefilling[request_id] = num_tokens
        if self._prefilling or len(self._bound):
            begun = [outputs.request_ids[row] for row, *_ in outputs.timings]
            rows = zip(outputs.request_ids, outputs.finish_reasons, strict=True)
            for request_id in (*begun, *(request_id for request_id, reason in rows if reason >= 0)):
                self._depart(request_id)
                self._prefilling.pop(request_id, None)

    def leaving(self, request_ids: list[str]) -> None:
        """These were ended here; they count until `left`."""
        self._num_leaving += len(request_ids)

    def left(self, request_ids: Iterable[str]) -> None:
        """The engine has been told that these have ended."""
        for request_id in request_ids:
            self._num_leaving -= 1
            self._bound.remove(request_id)
            self._prefilling.pop(request_id, None)

    def lost(self, request_ids: Iterable[str]) -> None:
        """The engine that had these has gone."""
        for request_id in request_ids:
            self._bound.remove(request_id)
            self._prefilling.pop(request_id, None)

    def clear(self) -> None:
        """The engines have gone, and their queues with them."""
        self._bound.clear()
        self._prefilling.clear()
        self._notice.end()

    def tell_relief(self) -> None:
        """Log that nobody is refused any more, where that is so; to be called now and then."""
        if self.fill < 1.0:
            self._notice.look()

    @property
    def retry_after_seconds(self) -> int:
        """How long what is queued now will take to leave, at its rate since the queue was last empty; 1 to 60."""
        since = self._departures[0] if self._departures else self._begun_at
        # One more is taken to leave now: a queue of which nobody has left yet says nothing about its rate.
        seconds = (self._clock() - since) / 1e9 * len(self._bound) / (len(self._departures) + 1)
        return min(MAX_RETRY_SECONDS, max(1, math.ceil(seconds)))

    def _depart(self, request_id: str) -> int | None:
        num_tokens = self._bound.remove(request_id)
        if num_tokens is not None:
            self._departures.append(self._clock())
        return num_tokens

    def _require_room(self, new: Sequence[int], num_untold: int = 0) -> None:
        """OverloadedError where there is none for these, and `num_untold` more whose tokens nobody knows yet."""
        if not self._limits.is_bounded:
            return
        load, num_reserved = self._load(), self._num_reserved + num_untold
        full = self._bound.why_full(new, load, num_reserved)
        if full is None:
            return
        num_reqs, num_tokens = self._bound.would_wait(new, load, num_reserved)
        if full == "max_num_queued_reqs":
            told = _told("sequences", num_reqs, len(new) + num_untold, self._limits.max_num_reqs)
        else:
            told = _told("prompt tokens", num_tokens, sum(new) + num_untold, self._limits.max_num_tokens)
        self._notice.refused(told)
        raise OverloadedError(told, REASON_OF[full], self.retry_after_seconds)

    def _load(self) -> QueueLoad:
        num_decoding = self._num_open() - len(self._bound) - len(self._prefilling) + self._num_leaving
        return QueueLoad(
            num_decoding + len(self._prefilling),
            num_decoding + sum(self._prefilling.values()),
            int(sum(num * (1 - self._usage[engine]) for engine, num in self._num_blocks.items())),
        )


class Place:
    """The room kept for one request, from when its sequences are counted until each is queued."""

    def __init__(self, queue: FrontQueue) -> None:
        self._queue = queue
        self._num_asked = 0
        self._num_kept = 0

    def look(self) -> None:
        """OverloadedError where there is no room for anybody."""
        self._queue.look(1)

    def grow_to(self, num_sequences: int) -> None:
        """Keep room for so many in all; OverloadedError, or RequestError, and what was kept stays."""
        if num_sequences > self._num_asked:
            self._queue.check_ever(num_sequences)
            self._queue.reserve(num_sequences - self._num_asked)
            self._num_kept += num_sequences - self._num_asked
            self._num_asked = num_sequences

    def spend(self, num_sequences: int) -> None:
        """So many are about to be queued."""
        num_spent = min(num_sequences, self._num_kept)
        self._num_kept -= num_spent
        self._queue.release(num_spent)

    def close(self) -> None:
        """Keep nothing any more."""
        self.spend(self._num_kept)


def _told(what: str, number: int, num_asked: int, most: int | None) -> str:
    """Why there is no room, where with the `num_asked` that are refused `number` would wait."""
    if num_asked == 1:
        return f"{number - 1} {what} wait to be run; at most {most} may"
    return f"with this request {number} {what} would wait to be run; at most {most} may"

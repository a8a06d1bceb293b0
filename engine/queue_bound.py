"""QueueBound: the sequences that wait for their first step, and whether there is room for more."""

from collections.abc import Iterable, Sequence
from itertools import chain, repeat
from math import ceil
from typing import Literal, NamedTuple

from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.errors import Reason

Full = Literal["max_num_queued_reqs", "max_num_queued_tokens"]
"""Which bound keeps more from coming; the names of their flags."""

REASON_OF: dict[Full, Reason] = {
    "max_num_queued_reqs": "overloaded",
    "max_num_queued_tokens": "too_many_queued_tokens",
}
"""What a client is told."""


class QueueLimits(NamedTuple):
    """The bounds of the queue (None: there is none), and the limits of one step and of one block."""

    max_num_reqs: int | None
    max_num_tokens: int | None
    max_num_seqs: int
    max_num_batched_tokens: int
    max_num_mixed_prefill_tokens: int
    is_chunked: bool
    block_size: int

    @classmethod
    def from_config(cls, config: VllmConfig) -> "QueueLimits":
        """The limits that the scheduler works under."""
        scheduler = config.scheduler
        return cls(
            scheduler.max_num_queued_reqs,
            scheduler.max_num_queued_tokens,
            scheduler.max_num_seqs,
            scheduler.max_num_batched_tokens,
            scheduler.max_num_mixed_prefill_tokens or scheduler.max_num_batched_tokens,
            scheduler.enable_chunked_prefill,
            config.cache.block_size,
        )

    def times(self, num_engines: int) -> "QueueLimits":
        """Those of so many engines together."""
        most_reqs, most_tokens = self.max_num_reqs, self.max_num_tokens
        return self._replace(
            max_num_reqs=None if most_reqs is None else most_reqs * num_engines,
            max_num_tokens=None if most_tokens is None else most_tokens * num_engines,
            max_num_seqs=self.max_num_seqs * num_engines,
            max_num_batched_tokens=self.max_num_batched_tokens * num_engines,
            max_num_mixed_prefill_tokens=self.max_num_mixed_prefill_tokens * num_engines,
        )

    def share_of(self, num_clients: int) -> "QueueLimits":
        """What one of so many API servers may use of them, rounded up; none knows what the others use."""
        most_reqs, most_tokens = self.max_num_reqs, self.max_num_tokens
        return self._replace(
            max_num_reqs=None if most_reqs is None else ceil(most_reqs / num_clients),
            max_num_tokens=None if most_tokens is None else ceil(most_tokens / num_clients),
            max_num_seqs=ceil(self.max_num_seqs / num_clients),
            max_num_batched_tokens=ceil(self.max_num_batched_tokens / num_clients),
            max_num_mixed_prefill_tokens=ceil(self.max_num_mixed_prefill_tokens / num_clients),
        )

    @property
    def is_bounded(self) -> bool:
        """Whether anything is to be counted at all."""
        return self.max_num_reqs is not None or self.max_num_tokens is not None


class QueueLoad(NamedTuple):
    """What the next step has already: sequences, and tokens of its budget for them; and blocks nobody holds."""

    num_running: int
    num_busy_tokens: int
    num_free_blocks: int


class QueueBound:
    """Sequences by id with their prompt tokens, in order of arrival, until their first step.

    Those that the next step is sure to take do not count as queued: an idle engine takes as many as fit a step
    beside the queue's bound. Sure is what fits slots, token budget and free blocks, without any hope for cached
    prefixes. `held` ones wait for something of their own (a grammar), so that no step is sure to take them.
    """

    def __init__(self, limits: QueueLimits) -> None:
        self.limits = limits
        self.num_tokens = 0
        self._queued: dict[str, int] = {}
        self._held: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._queued) + len(self._held)

    def add(self, request_id: str, num_tokens: int, is_held: bool = False) -> None:
        """A sequence waits from now on."""
        (self._held if is_held else self._queued)[request_id] = num_tokens
        self.num_tokens += num_tokens

    def remove(self, request_id: str) -> int | None:
        """It was scheduled, or has ended: its tokens; None where it did not wait."""
        num_tokens = self._queued.pop(request_id, None)
        if num_tokens is None and self._held:
            num_tokens = self._held.pop(request_id, None)
        if num_tokens is not None:
            self.num_tokens -= num_tokens
        return num_tokens

    def clear(self) -> None:
        """Nobody waits any more."""
        self._queued.clear()
        self._held.clear()
        self.num_tokens = 0

    def why_full(self, new: Sequence[int], load: QueueLoad, num_reserved: int = 0) -> Full | None:
        """Which bound has no room for more sequences with so many tokens each; None where all of them fit.

        `num_reserved` come behind them, whose tokens nobody knows yet; each has one at least.
        """
        if self._over(*self._in_all(new, num_reserved)) is None:
            return None
        return self._over(*self.would_wait(new, load, num_reserved))

    def would_wait(self, new: Sequence[int], load: QueueLoad, num_reserved: int = 0) -> tuple[int, int]:
        """How many sequences, of how many tokens, would wait if these came: what is held to the bounds."""
        num_reqs, num_tokens = self._in_all(new, num_reserved)
        num_leaving, num_leaving_tokens = self._leaving(chain(new, repeat(1, num_reserved)), load)
        return num_reqs - num_leaving, num_tokens - num_leaving_tokens

    def _in_all(self, new: Sequence[int], num_reserved: int) -> tuple[int, int]:
        return len(self) + len(new) + num_reserved, self.num_tokens + sum(new) + num_reserved

    def _over(self, num_reqs: int, num_tokens: int) -> Full | None:
        limits = self.limits
        if limits.max_num_reqs is not None and num_reqs > limits.max_num_reqs:
            return "max_num_queued_reqs"
        if limits.max_num_tokens is not None and num_tokens > limits.max_num_tokens:
            return "max_num_queued_tokens"
        return None

    def _leaving(self, new: Iterable[int], load: QueueLoad) -> tuple[int, int]:
        """How many of those that wait or come, and tokens of theirs, the next step is sure to take."""
        limits = self.limits
        num_slots = limits.max_num_seqs - load.num_running
        budget = limits.max_num_batched_tokens - load.num_busy_tokens
        if limits.is_chunked and load.num_running:
            num_prefill = load.num_busy_tokens - load.num_running
            budget = min(budget, limits.max_num_mixed_prefill_tokens - num_prefill)
        num_blocks = load.num_free_blocks - load.num_running  # each running one may grow by a block first
        num_leaving = num_leaving_tokens = 0
        for num_tokens in chain(self._queued.values(), new):
            num_needed = -(-num_tokens // limits.block_size)
            least = 1 if limits.is_chunked else num_tokens
            if num_leaving >= num_slots or budget < least or num_blocks < num_needed:
                break
            num_leaving += 1
            num_leaving_tokens += num_tokens
            budget -= num_tokens
            num_blocks -= num_needed
        return num_leaving, num_leaving_tokens

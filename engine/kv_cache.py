"""Which blocks hold which sequence's keys and values, and which of them other sequences may share."""

import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from vllm_obs.engine.block_hash import block_hash
from vllm_obs.engine.block_pool import BlockPool
from vllm_obs.engine.request import Request

_NEVER = sys.maxsize


class BlockEvents(NamedTuple):
    """What happened to blocks since the events were last taken.

    `allocated` holds (request id, block ids, how many of the first came from the prefix cache), `freed`
    (request id, block ids); `cached` and `evicted` hold (block id, hash).
    """

    allocated: list[tuple[str, list[int], int]]
    freed: list[tuple[str, list[int]]]
    cached: list[tuple[int, bytes]]
    evicted: list[tuple[int, bytes]]


class KVCacheManager:
    """Gives each sequence the blocks its next tokens need, and finds prefixes that are computed already."""

    def __init__(self, num_blocks: int, block_size: int, enable_prefix_caching: bool) -> None:
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.pool = BlockPool(num_blocks)
        self._allocated: list[tuple[str, list[int], int]] = []
        self._freed: list[tuple[str, list[int]]] = []

    @property
    def usage(self) -> float:
        """The share of blocks in use, 0 … 1."""
        return self.pool.num_active / self.pool.num_blocks

    def num_blocks_for(self, num_tokens: int) -> int:
        """How many blocks hold that many tokens."""
        return -(-num_tokens // self.block_size)

    def num_missing_for(self, request: Request, num_new_tokens: int) -> int:
        """How many blocks more there would have to be for the next tokens of a sequence that has a table."""
        num_blocks = self.num_blocks_for(request.num_computed_tokens + num_new_tokens)
        return num_blocks - len(request.block_ids) - self.pool.num_available

    def get_computed_blocks(self, request: Request) -> list[int]:
        """The cached blocks that hold a prefix of the sequence, longest run from the start.

        The last known token is always computed, because its logits are wanted: a full hit loses its last
        block. They are not touched yet, so use them before anything else is allocated.
        """
        if not self.enable_prefix_caching or request.passes_whole_prompt or not request.trusts_cache:
            return []
        found: list[int] = []
        for index in range((request.num_tokens - 1) // self.block_size):
            block_id = self.pool.find(block_hash(request, index, self.block_size))
            if block_id is None:
                break
            found.append(block_id)
        return found

    def can_hold(self, request: Request, computed_blocks: Sequence[int], num_spare_blocks: int) -> bool:
        """Whether all known tokens would fit now beside `num_spare_blocks` left for others."""
        num_new = self.num_blocks_for(request.num_tokens) - len(computed_blocks)
        num_needed = num_new + self._num_idle(computed_blocks) + num_spare_blocks
        return num_needed <= self.pool.num_available

    def allocate_slots(
        self, request: Request, num_new_tokens: int, computed_blocks: Sequence[int] = ()
    ) -> list[int] | None:
        """Room for the tokens after `num_computed_tokens` (and after `computed_blocks`, on admission).

        Returns the blocks appended to the table, without the computed ones, or None when there is no room
        (then nothing has changed).
        """
        num_tokens = request.num_computed_tokens + len(computed_blocks) * self.block_size + num_new_tokens
        num_new = self.num_blocks_for(num_tokens) - len(request.block_ids) - len(computed_blocks)
        if num_new + self._num_idle(computed_blocks) > self.pool.num_available:
            return None
        if not request.block_ids:
            self._begin_table(request, computed_blocks)
        new_blocks = self.pool.allocate(num_new)
        request.block_ids += new_blocks
        request.num_slots = len(request.block_ids) * self.block_size
        self._allocated.append((request.request_id, [*computed_blocks, *new_blocks], len(computed_blocks)))
        return new_blocks

    def _begin_table(self, request: Request, computed_blocks: Sequence[int]) -> None:
        self.pool.touch(computed_blocks)
        request.block_ids += computed_blocks
        request.num_cached_blocks = len(computed_blocks)
        request.next_cache_at = _NEVER
        if self.enable_prefix_caching:
            request.next_cache_at = (len(computed_blocks) + 1) * self.block_size

    def _num_idle(self, block_ids: Sequence[int]) -> int:
        """How many of these leave the free queue when they are used."""
        return sum(not self.pool.num_refs(block_id) for block_id in block_ids) if block_ids else 0

    def cache_blocks(self, request: Request, num_answered_tokens: int) -> None:
        """Let others find the blocks that a step which has answered filled up to `num_answered_tokens`."""
        if not self.enable_prefix_caching:
            return
        num_full = num_answered_tokens // self.block_size
        for index in range(request.num_cached_blocks, num_full):
            self.pool.cache(request.block_ids[index], block_hash(request, index, self.block_size))
        request.num_cached_blocks = max(num_full, request.num_cached_blocks)
        request.next_cache_at = (request.num_cached_blocks + 1) * self.block_size

    def forget(self, table: Sequence[int]) -> None:
        """Let nobody find the blocks of a table in use any more: what they hold may not be numbers."""
        for block_id in table:
            self.pool.forget(block_id)

    def detach(self, request: Request) -> list[int]:
        """Take the table from the sequence, still referenced: for `release` once no plan in flight names it."""
        table, request.block_ids = request.block_ids, []
        request.num_slots = request.num_cached_blocks = 0
        return table

    def release(self, request_id: str, table: list[int]) -> None:
        """Give a detached table back to the pool."""
        self.pool.release(table)
        if table:
            self._freed.append((request_id, table))

    def free(self, request: Request) -> None:
        """Give the sequence's blocks back at once."""
        self.release(request.request_id, self.detach(request))

    def reset_prefix_cache(self) -> bool:
        """Forget every cached block; False, and nothing done, while any block is in use."""
        return self.pool.reset_cache()

    @property
    def has_events(self) -> bool:
        """Whether anything happened since the last call of `take_events`."""
        return bool(self._allocated or self._freed or self.pool.newly_cached or self.pool.newly_evicted)

    def take_events(self) -> BlockEvents:
        """What happened since the last call."""
        events = BlockEvents(self._allocated, self._freed, self.pool.newly_cached, self.pool.newly_evicted)
        self._allocated, self._freed = [], []
        self.pool.newly_cached, self.pool.newly_evicted = [], []
        return events

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Verify the pool against every table in use; BlockCountError when they differ."""
        self.pool.check(tables)

"""SharedSums: what the shards of one host exchange, through memory that they share."""

import mmap
import os
import platform
import time
from collections.abc import Sequence

import torch

from vllm_obs.engine.group_setup import (
    LINE_BYTES,
    NUM_SLOTS,
    SLOT_BYTES,
    PeerLostError,
    header_bytes,
    sums_bytes,
)

_MAX_YIELDS = 100
_SHORTEST_NAP_SECONDS = 2e-5
_LONGEST_NAP_SECONDS = 5e-4


def has_ordered_stores() -> bool:
    """Whether another core sees a word that was written last only after all that was written before it."""
    return platform.machine() in ("x86_64", "AMD64")


class SharedSums:
    """Each shard has a word, the number of pieces it has put down, and two slots that it puts them into by turns.

    Nobody puts down a piece before all others have put down the one before it: by then they have read what was in
    the slot. What is larger than a slot goes in several pieces. Whoever waits looks again and again, after some
    microseconds with naps between.
    """

    def __init__(self, memory_fd: int, number: int, ranks: Sequence[int], rank: int, seconds: float) -> None:
        """The shards are `ranks`, and in memory the `number`-th such group; one may wait for another so long."""
        num_shards = len(ranks)
        self._ranks = ranks
        self._own = ranks.index(rank)
        self._deadline_seconds = seconds
        self._num_pieces = 0
        # Nobody closes it: a rank's process ends without ceremony.
        size = sums_bytes(num_shards)
        self._memory = mmap.mmap(memory_fd, size, offset=number * size)
        self._words = memoryview(self._memory)[: num_shards * LINE_BYTES].cast("Q")
        slots = torch.frombuffer(self._memory, dtype=torch.uint8, offset=header_bytes(num_shards))
        self._slots = slots.view(num_shards, NUM_SLOTS, SLOT_BYTES)

    def total(self, part: torch.Tensor) -> torch.Tensor:
        """The sum of all shards' float32 parts, the same to the bit on each."""
        flat, total = part.view(-1), torch.empty_like(part)
        sums, num_each = total.view(-1), SLOT_BYTES // part.itemsize
        for start in range(0, flat.numel(), num_each):
            pieces = self._exchange(flat[start : start + num_each])
            summed = sums[start : start + num_each]
            torch.add(pieces[0], pieces[1], out=summed)
            for piece in pieces[2:]:
                summed += piece
        return total

    def gathered(self, part: torch.Tensor) -> list[torch.Tensor]:
        """Every shard's part in order, on the first shard; on the others nothing."""
        is_first = self._own == 0
        parts = [torch.empty_like(part) for _ in self._ranks] if is_first else []
        flat, num_each = part.view(-1), SLOT_BYTES // part.itemsize
        for start in range(0, flat.numel(), num_each):
            pieces = self._exchange(flat[start : start + num_each], is_awaited=is_first)
            for whole, piece in zip(parts, pieces, strict=False):
                whole.view(-1)[start : start + num_each] = piece
        return parts

    def _exchange(self, own: torch.Tensor, is_awaited: bool = True) -> list[torch.Tensor]:
        """Put down a piece. If they are awaited, views of all shards' pieces, to be read before the next call."""
        self._wait_for(self._num_pieces)
        self._num_pieces += 1
        slots = self._slots[:, self._num_pieces % NUM_SLOTS, : own.nbytes].view(own.dtype)
        slots[self._own].copy_(own)
        self._words[self._own * LINE_BYTES // 8] = self._num_pieces
        if not is_awaited:
            return []
        self._wait_for(self._num_pieces)
        return list(slots)

    def _late(self, num_pieces: int) -> list[int]:
        words = self._words[:: LINE_BYTES // 8]
        return [rank for rank, word in zip(self._ranks, words, strict=True) if word < num_pieces]

    def _wait_for(self, num_pieces: int) -> None:
        """Until every shard has put down so many. PeerLostError names those that do not in time."""
        for _ in range(_MAX_YIELDS):
            if not self._late(num_pieces):
                return
            os.sched_yield()
        deadline, nap = time.monotonic() + self._deadline_seconds, _SHORTEST_NAP_SECONDS
        while late := self._late(num_pieces):
            if time.monotonic() > deadline:
                names = ", ".join(f"rank {rank}" for rank in late)
                own, seconds = self._ranks[self._own], self._deadline_seconds
                raise PeerLostError(f"rank {own} waited {seconds:.1f} s for {names}, in vain", late)
            time.sleep(nap)
            nap = min(2 * nap, _LONGEST_NAP_SECONDS)

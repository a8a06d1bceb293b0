"""A decoder that reads its tokens back from the paged cache, and a small configuration for it."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from vllm_obs.engine.attention.batch import AttentionBatch
from vllm_obs.engine.config import (
    CacheConfig,
    ModelArchitecture,
    ModelConfig,
    ObservabilityConfig,
    ParallelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm_obs.engine.model.interface import Progress, unwatched

VOCAB = 64


class FakeCache:
    """One slot holds the token written there and its position."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.slots = torch.full((num_blocks * block_size, 2), -1)


class FakeDecoder:
    """Logits of a position are a function of all tokens up to it, as found in the cache through the block table.

    A wrong slot, position, block table or row gives other logits, or fails an assertion.
    """

    def __init__(self) -> None:
        self.heads: list[int] = []
        self.batches: list[AttentionBatch] = []

    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> FakeCache:
        return FakeCache(num_blocks, block_size)

    def kv_block_bytes(self, block_size: int) -> int:
        return 8 * block_size

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        batch: AttentionBatch,
        kv_cache: FakeCache,
        on_layer: Progress = unwatched,
    ) -> torch.Tensor:
        on_layer()
        assert token_ids.dtype == positions.dtype == batch.slot_mapping.dtype == batch.block_tables.dtype
        assert [length == 1 for length in batch.query_lens] == sorted(
            (length == 1 for length in batch.query_lens), reverse=True
        )
        assert batch.num_decodes == batch.query_lens.count(1)
        assert len(token_ids) == sum(batch.query_lens)
        self.batches.append(batch)
        kv_cache.slots[batch.slot_mapping] = torch.stack([token_ids, positions], dim=1)
        states = []
        for row, (query_len, seq_len) in enumerate(zip(batch.query_lens, batch.seq_lens, strict=True)):
            every = np.arange(seq_len)
            blocks = batch.block_tables[row].numpy()[every // kv_cache.block_size]
            cached = kv_cache.slots[torch.from_numpy(blocks * kv_cache.block_size + every % kv_cache.block_size)]
            assert cached[:, 1].tolist() == every.tolist()
            states += [history(cached[:end, 0].tolist()) for end in range(seq_len - query_len + 1, seq_len + 1)]
        return torch.tensor(states)[batch.logits_indices]

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        self.heads.append(len(hidden))
        return torch.stack([logits_of(int(state)) for state in hidden])


def history(tokens: list[int]) -> int:
    """A number that stands for a sequence of tokens."""
    state = 7
    for token in tokens:
        state = (state * 1_000_003 + token + 1) % (2**31 - 1)
    return state


def logits_of(state: int) -> torch.Tensor:
    """Float32 (vocab,) for a history."""
    return torch.from_numpy(np.random.default_rng(state).normal(size=VOCAB).astype(np.float32) * 3)


def fake_config(**changes: Any) -> VllmConfig:
    """A small configuration; names of its parts' fields may be given."""
    architecture = ModelArchitecture("Fake", VOCAB, 8, 8, 1, 1, 1, 8, 1e-5, 1e4, 128, True)
    parts: dict[str, Any] = {
        "model": ModelConfig("fake", "", "dummy", "", ("fake",), architecture, "float32", 96),
        "cache": CacheConfig(block_size=4),
        "scheduler": SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64),
        "parallel": ParallelConfig(),
        "observability": ObservabilityConfig(),
    }
    for name, part in parts.items():
        mine = {field: changes.pop(field) for field in list(changes) if hasattr(part, field)}
        parts[name] = replace(part, **mine)
    assert not changes
    return VllmConfig(**parts)

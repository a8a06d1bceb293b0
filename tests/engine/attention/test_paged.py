"""Attention over the paged cache against attention written down row by row."""

import math
from dataclasses import dataclass

import pytest
import torch

from vllm_obs.engine.attention import step_indices
from vllm_obs.engine.attention.batch import AttentionBatch
from vllm_obs.engine.attention.kv_cache import BlockedKVCache
from vllm_obs.engine.attention.paged import PagedAttention
from vllm_obs.engine.attention.step_indices import StepIndexer

HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE = 6, 2, 8, 4
NUM_QUERY_VALUES = HEADS * HEAD_DIM


@dataclass
class Layer:
    """One layer's cache, filled with a past for rows of some lengths, and the step that extends them."""

    query_lens: list[int]
    seq_lens: list[int]
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        torch.manual_seed(4)
        blocks_each = -(-max(self.seq_lens) // BLOCK_SIZE)
        num_blocks = len(self.seq_lens) * blocks_each + 1
        self.cache = BlockedKVCache(
            (num_blocks, KV_HEADS, BLOCK_SIZE, HEAD_DIM), 1, self.dtype, torch.device("cpu")
        )
        self.tables = (torch.randperm(num_blocks - 1) + 1).view(len(self.seq_lens), -1)
        # (row, token, key or value, head, head_dim), in numbers that the cache's dtype holds exactly
        self.past = (
            torch.randn(len(self.seq_lens), max(self.seq_lens), 2, KV_HEADS, HEAD_DIM).to(self.dtype).float()
        )
        for row, (seq_len, num_queries) in enumerate(zip(self.seq_lens, self.query_lens, strict=True)):
            for token in range(seq_len - num_queries):
                block = self.tables[row, token // BLOCK_SIZE]
                self.cache.layers[0][block, :, :, token % BLOCK_SIZE] = self.past[row, token].to(self.dtype)
        self.queries = torch.randn(sum(self.query_lens), HEADS, HEAD_DIM)

    def attend(self, window: int | None = None) -> torch.Tensor:
        """What the step gives: (T, heads * head_dim)."""
        new = [
            self.past[row, seq_len - num_queries : seq_len]
            for row, (seq_len, num_queries) in enumerate(zip(self.seq_lens, self.query_lens, strict=True))
        ]
        qkv = torch.cat((self.queries.flatten(1), torch.cat(new).flatten(1)), 1)
        attention = PagedAttention(HEADS, KV_HEADS, HEAD_DIM, window, torch.float32, torch.float32)
        indices = StepIndexer(self.batch(), self.cache, torch.float32).indices(window)
        return attention(qkv, self.cache.layers[0], indices)

    def batch(self) -> AttentionBatch:
        slots = []
        for row, (seq_len, num_queries) in enumerate(zip(self.seq_lens, self.query_lens, strict=True)):
            tokens = torch.arange(seq_len - num_queries, seq_len)
            slots.append(self.tables[row, tokens // BLOCK_SIZE] * BLOCK_SIZE + tokens % BLOCK_SIZE)
        return AttentionBatch(
            num_decodes=self.query_lens.count(1),
            query_lens=self.query_lens,
            seq_lens=self.seq_lens,
            block_tables=self.tables,
            slot_mapping=torch.cat(slots),
            logits_indices=torch.arange(sum(self.query_lens)),
        )

    def expected(self, window: int | None = None) -> torch.Tensor:
        """The same, one query and one head at a time."""
        outputs, flat = [], 0
        for row, (seq_len, num_queries) in enumerate(zip(self.seq_lens, self.query_lens, strict=True)):
            for position in range(seq_len - num_queries, seq_len):
                first = 0 if window is None else max(0, position - window + 1)
                keys, values = self.past[row, first : position + 1].unbind(1)
                for head in range(HEADS):
                    shared = head // (HEADS // KV_HEADS)
                    scores = keys[:, shared] @ self.queries[flat, head] / math.sqrt(HEAD_DIM)
                    outputs.append(scores.softmax(0) @ values[:, shared])
                flat += 1
        return torch.stack(outputs).view(-1, NUM_QUERY_VALUES)


STEPS = {
    "decodes": ([1] * 5, [3, 9, 4, 1, 17]),
    "prompts": ([5, 9, 2], [5, 9, 2]),
    "chunks": ([5, 9], [30, 10]),
    "mixed": ([1, 1, 1, 6, 2], [40, 2, 3, 6, 33]),
}


@pytest.mark.parametrize("window", [None, 1, 5, 64])
@pytest.mark.parametrize("step", STEPS)
def test_every_kind_of_row_attends_to_what_it_may_see(step: str, window: int | None) -> None:
    layer = Layer(*STEPS[step])
    torch.testing.assert_close(layer.attend(window), layer.expected(window), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("window", [None, 7])
def test_small_groups_and_short_query_spans_change_nothing(
    window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    block_bytes = 2 * KV_HEADS * BLOCK_SIZE * HEAD_DIM * 4
    monkeypatch.setattr(step_indices, "_GATHERED_BYTES", {"cpu": 6 * block_bytes})
    monkeypatch.setattr(step_indices, "_QUERIES_AT_ONCE", 4)
    layer = Layer([1] * 7 + [11, 9], [60, 3, 5, 30, 2, 4, 1, 11, 40])
    torch.testing.assert_close(layer.attend(window), layer.expected(window), atol=1e-5, rtol=1e-5)


def test_a_bfloat16_cache_is_read_as_it_is() -> None:
    layer = Layer(*STEPS["mixed"], dtype=torch.bfloat16)
    torch.testing.assert_close(layer.attend(), layer.expected(), atol=1e-5, rtol=1e-5)


def test_scores_in_bfloat16_come_near() -> None:
    layer = Layer(*STEPS["decodes"], dtype=torch.bfloat16)
    new = torch.stack([layer.past[row, seq_len - 1] for row, seq_len in enumerate(layer.seq_lens)])
    qkv = torch.cat((layer.queries.flatten(1), new.flatten(1)), 1)
    attention = PagedAttention(HEADS, KV_HEADS, HEAD_DIM, None, torch.bfloat16, torch.bfloat16)
    indices = StepIndexer(layer.batch(), layer.cache, torch.bfloat16).indices(None)
    found = attention(qkv, layer.cache.layers[0], indices)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), layer.expected(), atol=0.05, rtol=0.05)


def test_one_long_row_does_not_make_the_others_gather_more() -> None:
    batch = Layer([1] * 33, [5] * 16 + [200] + [5] * 16).batch()
    cache = BlockedKVCache((3000, KV_HEADS, BLOCK_SIZE, HEAD_DIM), 1, torch.float32, torch.device("cpu"))
    groups = StepIndexer(batch, cache, torch.float32).indices(None).decodes
    gathered = sum(len(group.gather) for group in groups)
    assert gathered == 2 * KV_HEADS * (32 * 2 + 50)


def test_a_row_gone_wrong_leaves_no_nan_in_its_blocks() -> None:
    layer = Layer([1, 1], [3, 7])
    layer.past[0, 2, :, 0, 0] = torch.nan
    layer.queries[1, 2, 3] = torch.inf
    layer.attend()
    assert layer.cache.layers[0].isfinite().all()

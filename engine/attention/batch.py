"""The shape of one step's tokens, as attention and the KV write need it."""

from dataclasses import dataclass

import torch

TABLE_MULTIPLE = 16
"""Of the width of block tables on a GPU, in blocks: Triton compiles a kernel for a kind of stride."""


@dataclass
class AttentionBatch:
    """Rows are sequences; a row's tokens are consecutive in the flat token axis (T tokens, B rows).

    Rows with one query token come first (`num_decodes` of them); longer rows (prompt chunks) follow.
    query_lens: tokens of each row in this step. seq_lens: tokens of each row in the cache after this step.
    block_tables: int64 (B, max_blocks), padded with 0. slot_mapping: int64 (T,), block * block_size + offset.
    logits_indices: int64 (R,), the token positions (in T) whose hidden state is turned into logits.
    """

    num_decodes: int
    query_lens: list[int]
    seq_lens: list[int]
    block_tables: torch.Tensor
    slot_mapping: torch.Tensor
    logits_indices: torch.Tensor

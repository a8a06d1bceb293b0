"""What the splits of `paged_attention` found, put together into each head's output."""

import torch
import triton.language as tl

from vllm_obs.engine.kernels.triton.configs import Configs
from vllm_obs.engine.kernels.triton.launch import Argument, Constant, Launch, Pointer, kernel, padded
from vllm_obs.engine.kernels.triton.paged_attention import SplitBuffers


@kernel
def split_reduction_kernel(
    partial: "Pointer",
    partial_stats: "Pointer",
    output: "Pointer",
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    SPLIT_BLOCK: tl.constexpr,
) -> None:
    """One program: one head of one token."""
    place = tl.program_id(0).to(tl.int64) * NUM_HEADS + tl.program_id(1)
    split = tl.arange(0, SPLIT_BLOCK)
    feature = tl.arange(0, HEAD_BLOCK)
    is_split, is_feature = split < NUM_SPLITS, feature < HEAD_DIM
    largest = tl.load(partial_stats + (place * NUM_SPLITS + split) * 2, mask=is_split, other=float("-inf"))
    totals = tl.load(partial_stats + (place * NUM_SPLITS + split) * 2 + 1, mask=is_split, other=0.0)
    factors = tl.exp2(largest - tl.max(largest, 0))
    sums = tl.load(
        partial + (place * NUM_SPLITS + split)[:, None] * HEAD_DIM + feature[None, :],
        mask=is_split[:, None] & is_feature[None, :],
        other=0.0,
    )
    result = tl.sum(sums * factors[:, None], 0) / tl.sum(totals * factors, 0)
    tl.store(output + place * HEAD_DIM + feature, result.to(output.dtype.element_ty), mask=is_feature)


def split_reduction(splits: SplitBuffers, output: torch.Tensor, configs: Configs) -> Launch:
    """output: (T, heads * head_dim)."""
    num_tokens, num_heads, num_splits, head_dim = splits.sums.shape
    constants: dict[str, Constant] = {
        "NUM_HEADS": num_heads,
        "HEAD_DIM": head_dim,
        "HEAD_BLOCK": padded(head_dim),
        "NUM_SPLITS": num_splits,
        "SPLIT_BLOCK": padded(num_splits),
    }
    arguments: dict[str, Argument] = {"partial": splits.sums, "partial_stats": splits.stats, "output": output}
    return Launch(
        split_reduction_kernel, (num_tokens, num_heads), arguments, constants, configs.of("split_reduction")
    )

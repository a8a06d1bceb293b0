"""Grammar masks: tokens whose bit is 0 become impossible."""

import torch
import triton.language as tl

from vllm_obs.engine.kernels.triton.configs import Configs
from vllm_obs.engine.kernels.triton.launch import Argument, Launch, Number, Pointer, kernel

WORD_BITS = 32


@kernel
def token_bitmask_kernel(
    logits: "Pointer",
    rows: "Pointer",
    bitmask: "Pointer",
    logits_stride: "Number",
    num_words: "Number",
    VOCAB: tl.constexpr,
    BLOCK_WORDS: tl.constexpr,
) -> None:
    """One program: some words of one mask."""
    mask_row = tl.program_id(0).to(tl.int64)
    word = tl.program_id(1) * BLOCK_WORDS + tl.arange(0, BLOCK_WORDS)
    bit = tl.arange(0, 32)
    words = tl.load(bitmask + mask_row * num_words + word, mask=word < num_words, other=0)
    is_banned = ((words[:, None] >> bit[None, :]) & 1) == 0
    token = word[:, None] * 32 + bit[None, :]
    target = logits + tl.load(rows + mask_row).to(tl.int64) * logits_stride + token
    tl.store(target, tl.full([BLOCK_WORDS, 32], float("-inf"), tl.float32), mask=is_banned & (token < VOCAB))


def token_bitmask(logits: torch.Tensor, rows: torch.Tensor, bitmask: torch.Tensor, configs: Configs) -> Launch:
    """Ban tokens of logits float32 (R, vocab), in place.

    bitmask: int32 (M, words), contiguous, least significant bit first; rows: int32 (M,), the row of each, no row
    twice. Tokens beyond the mask's width are banned.
    """
    config = configs.of("token_bitmask")
    vocab_size = logits.shape[1]
    num_tiles = -(-vocab_size // (WORD_BITS * config.sizes["BLOCK_WORDS"]))
    arguments: dict[str, Argument] = {
        "logits": logits,
        "rows": rows,
        "bitmask": bitmask,
        "logits_stride": logits.stride(0),
        "num_words": bitmask.shape[1],
    }
    return Launch(token_bitmask_kernel, (len(rows), num_tiles), arguments, {"VOCAB": vocab_size}, config)

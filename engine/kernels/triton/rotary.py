"""Rotary position embedding of heads whose pairs lie side by side, in place."""

import torch
import triton.language as tl

from vllm_obs.engine.kernels.triton.configs import Configs
from vllm_obs.engine.kernels.triton.launch import (
    Argument,
    Constant,
    Launch,
    Number,
    Pointer,
    Tile,
    device_function,
    kernel,
    padded,
)


@device_function
def rotated(first: "Tile", second: "Tile", rotations: "Pointer", pair: "Tile", is_pair: "Tile") -> "Tile":
    """Pairs (first, second) times the complex numbers at `rotations`."""
    cosine = tl.load(rotations + 2 * pair, mask=is_pair, other=0.0)
    sine = tl.load(rotations + 2 * pair + 1, mask=is_pair, other=0.0)
    return first * cosine - second * sine, first * sine + second * cosine


@kernel
def rotary_kernel(
    heads: "Pointer",
    rotations: "Pointer",
    positions: "Pointer",
    token_stride: "Number",
    num_heads: "Number",
    HEAD_DIM: tl.constexpr,
    PAIR_BLOCK: tl.constexpr,
    HEADS_BLOCK: tl.constexpr,
) -> None:
    """One program: some heads of one token."""
    token = tl.program_id(0).to(tl.int64)
    position = tl.load(positions + token)
    head = tl.program_id(1) * HEADS_BLOCK + tl.arange(0, HEADS_BLOCK)[:, None]
    pair = tl.arange(0, PAIR_BLOCK)[None, :]
    is_pair = pair < HEAD_DIM // 2
    kept = is_pair & (head < num_heads)
    place = heads + token * token_stride + head * HEAD_DIM + 2 * pair
    first = tl.load(place, mask=kept, other=0.0).to(tl.float32)
    second = tl.load(place + 1, mask=kept, other=0.0).to(tl.float32)
    first, second = rotated(first, second, rotations + position * HEAD_DIM, pair, is_pair)
    tl.store(place, first.to(heads.dtype.element_ty), mask=kept)
    tl.store(place + 1, second.to(heads.dtype.element_ty), mask=kept)


def rotary(
    heads: torch.Tensor, rotations: torch.Tensor, positions: torch.Tensor, num_rotated: int, configs: Configs
) -> Launch:
    """Rotate the first `num_rotated` heads of heads (T, heads, head_dim), in place.

    rotations: float32 (positions, head_dim / 2, 2), cosine and sine, `torch.view_as_real` of a rotation table.
    positions: int64 (T,).
    """
    head_dim = heads.shape[2]
    config = configs.of("rotary")
    arguments: dict[str, Argument] = {
        "heads": heads,
        "rotations": rotations,
        "positions": positions,
        "token_stride": heads.stride(0),
        "num_heads": num_rotated,
    }
    constants: dict[str, Constant] = {"HEAD_DIM": head_dim, "PAIR_BLOCK": padded(head_dim // 2)}
    num_tiles = -(-num_rotated // config.sizes["HEADS_BLOCK"])
    return Launch(rotary_kernel, (len(heads), num_tiles), arguments, constants, config)

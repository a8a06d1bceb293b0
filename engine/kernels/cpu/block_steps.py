"""A matrix's numbers, or the scales and offsets of its blocks, as whole numbers in steps that are an output's.

A weight is a whole number of 16 bits, in blocks code * scale, without its last bits, + offset. Steps are as fine
as 16 bits allow, and as the length of a piece of an output's weights does (see row_codes).
"""

from dataclasses import dataclass

import torch

from vllm_obs.engine.kernels.cpu.row_codes import GROUP_SIZE, GROUPS_A_PIECE, HIGHEST_CODE, LONGEST

FOUR_BIT_SHIFT, EIGHT_BIT_SHIFT = 4, 7
"""A block's scale has so many bits more than a step."""
_SMALLEST = 1e-30
_ROWS_AT_ONCE = 128
"""The numbers of so many stay in cache."""


@dataclass(frozen=True)
class BlockSteps:
    """output_scales: float32 (out,), the size of a step. of_blocks: int16 (out, groups, 1), scales and offsets, or
    all numbers, (out, groups, GROUP_SIZE).

    A weight of a block is round(code * scale / 2**shift) + offset steps.
    """

    output_scales: torch.Tensor
    of_blocks: tuple[torch.Tensor, ...]


def four_bit_steps(blocks: torch.Tensor, sums: torch.Tensor, squares: torch.Tensor) -> BlockSteps:
    """Of uint8 (out, groups, 18 or 20), Q4_0 or Q4_1: a scale, an offset or none (then -8 scales), 16 bytes.

    sums, squares: int32 (out, groups), of the codes of each block.
    """
    num_bytes = GROUP_SIZE // 2
    parameters = blocks[..., :-num_bytes].contiguous().view(torch.float16).float()
    scales = parameters[..., 0]
    offsets = parameters[..., 1] if parameters.shape[-1] == 2 else -8 * scales
    sums, squares = sums.float(), squares.float()
    lengths = scales.square() * squares + 2 * scales * offsets * sums + GROUP_SIZE * offsets.square()
    highest = torch.maximum(offsets.abs(), (15 * scales + offsets).abs())
    step = _step(lengths, torch.maximum(highest, scales.abs() * 2**FOUR_BIT_SHIFT))
    parts = (scales * 2**FOUR_BIT_SHIFT, offsets)
    return BlockSteps(step, tuple(_in_steps(part[..., None], step) for part in parts))


def eight_bit_steps(blocks: torch.Tensor, _: torch.Tensor, squares: torch.Tensor) -> BlockSteps:
    """Of uint8 (out, groups, 34), Q8_0: a scale and 32 signed codes. squares: int32 (out, groups), their sums."""
    scales = blocks[..., :2].contiguous().view(torch.float16).float()[..., 0]
    step = _step(scales.square() * squares.float(), scales.abs() * 2**EIGHT_BIT_SHIFT)
    return BlockSteps(step, (_in_steps(scales[..., None] * 2**EIGHT_BIT_SHIFT, step),))


def number_steps(groups: torch.Tensor) -> BlockSteps:
    """Of float32 (out, groups, GROUP_SIZE)."""
    parts = [_number_steps(part) for part in torch.split(groups, _ROWS_AT_ONCE)]
    scales, numbers = zip(*parts, strict=True)
    return BlockSteps(torch.cat(scales), (torch.cat(numbers),))


def _number_steps(groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    squares = groups.square() @ groups.new_ones(GROUP_SIZE)
    step = _step(squares, groups.flatten(1).abs().amax(1, keepdim=True))
    return step, _in_steps(groups, step)


def _step(squares: torch.Tensor, highest: torch.Tensor) -> torch.Tensor:
    """A step of each output (out,), from its groups' sums of squares (out, groups) and largest numbers."""
    missing = -squares.shape[1] % GROUPS_A_PIECE
    pieces = torch.nn.functional.pad(squares, (0, missing)).view(len(squares), -1, GROUPS_A_PIECE).sum(2)
    longest = pieces.clamp_min(0).sqrt().amax(1)
    return torch.maximum(longest / LONGEST, highest.amax(1) / (HIGHEST_CODE - 2)).clamp_min(_SMALLEST)


def _in_steps(values: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    """Values (out, groups, any) as whole numbers of each output's steps."""
    return (values / step[:, None, None]).round_().to(torch.int16)

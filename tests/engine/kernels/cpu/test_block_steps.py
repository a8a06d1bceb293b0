"""Weights in steps: as near to the file's numbers as 16 bits allow, never so long that a sum could overflow."""

from collections.abc import Callable

import gguf
import numpy as np
import pytest
import torch

from vllm_obs.engine.kernels.cpu.block_steps import (
    EIGHT_BIT_SHIFT,
    FOUR_BIT_SHIFT,
    BlockSteps,
    eight_bit_steps,
    four_bit_steps,
    number_steps,
)
from vllm_obs.engine.kernels.cpu.row_codes import GROUP_SIZE, HIGHEST_CODE, PIECE_SIZE

OUT, IN = 40, 416
"""Thirteen groups: two whole pieces and one group."""
LONGEST_EVER = 46340
"""Whose square is below 2**31."""

SHAPES: dict[str, Callable[[], torch.Tensor]] = {
    "ordinary": lambda: torch.randn(OUT, IN),
    "far apart": lambda: torch.randn(OUT, IN) * 10.0 ** torch.randint(-4, 4, (OUT, 1)),
    "constant": lambda: torch.full((OUT, IN), 0.7),
    "one number": lambda: torch.zeros(OUT, IN).index_fill_(1, torch.tensor([5]), -3.0),
    "two numbers": lambda: torch.zeros(OUT, IN).index_fill_(1, torch.tensor([5]), 3.0) - torch.eye(OUT, IN) * 3,
    "nothing": lambda: torch.zeros(OUT, IN),
}


@pytest.fixture(params=sorted(SHAPES))
def matrix(request: pytest.FixtureRequest) -> torch.Tensor:
    return SHAPES[request.param]()


def file_blocks(matrix: torch.Tensor, type_name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Blocks uint8 (out, groups, bytes) of a matrix, and the numbers in them."""
    kind = gguf.GGMLQuantizationType[type_name]
    raw = gguf.quantize(matrix.numpy(), kind).view(np.uint8).reshape(OUT, IN // GROUP_SIZE, -1)
    return torch.from_numpy(raw), torch.from_numpy(gguf.dequantize(raw.reshape(OUT, -1), kind)).double()


def codes_of(blocks: torch.Tensor, type_name: str) -> torch.Tensor:
    """int32 (out, groups, 32)."""
    if type_name == "Q8_0":
        return blocks[..., 2:].contiguous().view(torch.int8).int()
    packed = blocks[..., -16:].int()
    return torch.cat((packed & 15, packed >> 4), -1)


def check(weights: torch.Tensor, steps: BlockSteps, expected: torch.Tensor, most: float) -> None:
    """weights: whole numbers (out, groups, 32). No further than so many steps from what is expected."""
    assert weights.abs().max() <= HIGHEST_CODE
    for piece in weights.flatten(1).double().split(PIECE_SIZE, 1):
        assert piece.norm(dim=1).max() <= LONGEST_EVER
    found = weights.flatten(1).double() * steps.output_scales[:, None].double()
    assert ((found - expected).abs() <= most * steps.output_scales[:, None]).all()


@pytest.mark.parametrize("type_name", ["Q4_0", "Q4_1", "Q8_0"])
def test_blocks(matrix: torch.Tensor, type_name: str) -> None:
    blocks, expected = file_blocks(matrix, type_name)
    codes = codes_of(blocks, type_name)
    sums = codes.sum(-1, dtype=torch.int32), codes.square().sum(-1, dtype=torch.int32)
    steps = (eight_bit_steps if type_name == "Q8_0" else four_bit_steps)(blocks, *sums)
    shift = EIGHT_BIT_SHIFT if type_name == "Q8_0" else FOUR_BIT_SHIFT
    weights = codes * steps.of_blocks[0].int() + (1 << (shift - 1)) >> shift
    if len(steps.of_blocks) == 2:
        weights = weights + steps.of_blocks[1]
    check(weights, steps, expected, 1.51)


def test_numbers(matrix: torch.Tensor) -> None:
    steps = number_steps(matrix.view(OUT, -1, GROUP_SIZE))
    check(steps.of_blocks[0].int(), steps, matrix.double(), 0.51)


def test_blocks_whose_numbers_are_none_make_no_numbers() -> None:
    blocks, _ = file_blocks(torch.randn(OUT, IN), "Q4_1")
    blocks[3, 2, :2] = torch.tensor([float("nan")]).half().view(torch.uint8)
    codes = codes_of(blocks, "Q4_1")
    steps = four_bit_steps(blocks, codes.sum(-1), codes.square().sum(-1))
    assert steps.output_scales.isnan().tolist() == [number == 3 for number in range(OUT)]

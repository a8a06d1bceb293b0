"""The packing kernels against numpy: exact sums, and every code where the products look for it."""

import numpy as np
import pytest
import torch

from vllm_obs.engine.kernels.cpu.block_matrix import BlockMatrix
from vllm_obs.engine.kernels.cpu.block_pack import CODE_BYTES, BlockPack
from vllm_obs.engine.kernels.cpu.jit import Machine
from vllm_obs.engine.kernels.cpu.row_codes import PAIR_ORDER

FORMS = sorted(CODE_BYTES)
HEAD_BYTES = {"q4": 4, "q8": 2}
WIDTH, GROUPS = 16, 5


def random_blocks(form: str, num_outputs: int) -> torch.Tensor:
    shape = (num_outputs, GROUPS, HEAD_BYTES[form] + CODE_BYTES[form])
    random = np.random.default_rng(num_outputs)
    return torch.from_numpy(random.integers(0, 256, shape, dtype=np.uint8))


def codes_of(blocks: torch.Tensor, form: str) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    raw = blocks.numpy()[..., HEAD_BYTES[form] :]
    if form == "q8":
        return raw.view(np.int8).astype(np.int64)
    return np.concatenate((raw & 15, raw >> 4), -1).astype(np.int64)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("num_outputs", [0, 1, 40])
def test_sums_are_exact(machine: Machine, form: str, num_outputs: int) -> None:
    blocks = random_blocks(form, num_outputs)
    sums, squares = BlockPack(form, machine).sums(blocks)
    codes = codes_of(blocks, form)
    assert np.array_equal(sums.numpy(), codes.sum(-1))
    assert np.array_equal(squares.numpy(), (codes**2).sum(-1))


def test_the_largest_codes_do_not_overflow(machine: Machine) -> None:
    for form, byte, (total, square) in (("q4", 0xFF, (480, 7200)), ("q8", 0x80, (-4096, 524_288))):
        blocks = torch.full((1, 1, HEAD_BYTES[form] + CODE_BYTES[form]), byte, dtype=torch.uint8)
        sums, squares = BlockPack(form, machine).sums(blocks)
        assert (sums.item(), squares.item()) == (total, square)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("num_outputs", [1, 16, 40])
def test_codes_lie_by_group_and_output_and_nothing_else_is_touched(
    machine: Machine, form: str, num_outputs: int
) -> None:
    blocks, offset, num_others = random_blocks(form, num_outputs), 24, 6
    group_bytes = num_others + WIDTH * CODE_BYTES[form]
    num_panels = -(-num_outputs // WIDTH)
    panels = torch.full((num_panels, offset + GROUPS * group_bytes), 0xAA, dtype=torch.uint8)
    expected = panels.numpy().copy()
    size = 4 if form == "q4" else 2
    for output in range(num_outputs):
        for group in range(GROUPS):
            codes = blocks.numpy()[output, group, HEAD_BYTES[form] :]
            ordered = codes if form == "q4" else codes[PAIR_ORDER]
            for number, part in enumerate(ordered.reshape(-1, size)):
                begin = offset + group * group_bytes + (number * WIDTH + output % WIDTH) * size
                expected[output // WIDTH, begin : begin + size] = part
    BlockPack(form, machine).place(blocks, panels, offset, group_bytes, WIDTH)
    assert np.array_equal(panels.numpy(), expected)


@pytest.mark.parametrize("form", FORMS)
def test_it_refuses_to_write_outside(machine: Machine, form: str) -> None:
    blocks, group_bytes = random_blocks(form, 17), WIDTH * CODE_BYTES[form]
    for num_panels, num_missing in ((1, 0), (2, 1)):
        panels = torch.zeros(num_panels, GROUPS * group_bytes - num_missing, dtype=torch.uint8)
        with pytest.raises(AssertionError):
            BlockPack(form, machine).place(blocks, panels, 0, group_bytes, WIDTH)


@pytest.mark.parametrize("type_name", ["Q4_0", "Q4_1", "Q8_0"])
def test_outputs_that_do_not_exist_are_zeros(machine: Machine, type_name: str) -> None:
    rows = torch.zeros(3, 2 * {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}[type_name], dtype=torch.uint8)
    rows[:, ::2] = 1
    packed = BlockMatrix.pack(rows, type_name, machine)
    assert packed.padded_outputs >= 3
    scales = packed.panels[:, : 4 * packed.width].contiguous().view(torch.float32)
    assert (scales.flatten()[3:] == 0).all()

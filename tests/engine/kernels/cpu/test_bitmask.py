"""The bitmask kernel against numpy: it blanks what a mask does not allow, and touches nothing else."""

import numpy as np
import pytest

from vllm_obs.engine.kernels.cpu.bitmask import Bitmask
from vllm_obs.engine.kernels.cpu.jit import Machine

SHARES = [0.0, 0.01, 0.5, 0.98, 1.0]
"""Of the bits that are 1."""


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("num_words", [1, 3, 64])
def test_only_numbers_whose_bit_is_0_are_blanked(machine: Machine, share: float, num_words: int) -> None:
    random = np.random.default_rng(7)
    values = random.normal(size=(6, 32 * num_words + 5)).astype(np.float32)
    is_kept = random.random((3, 32 * num_words)) < share
    rows = np.array([4, 0, 3])
    expected = values.copy()
    expected[rows, : 32 * num_words] = np.where(is_kept, values[rows, : 32 * num_words], -np.inf)
    masks = np.packbits(is_kept, axis=1, bitorder="little").view(np.int32)
    Bitmask(machine).apply(values, rows, masks, num_words)
    assert np.array_equal(values, expected)


def test_numbers_that_are_kept_keep_their_bits(machine: Machine) -> None:
    values = np.full((1, 32), np.nan, np.float32)
    values.view(np.int32)[0, ::2] = 0x7FC0_1234
    before = values.view(np.int32).copy()
    Bitmask(machine).apply(values, np.array([0]), np.array([[0x5555_5555]], np.int32), 1)
    assert np.array_equal(values.view(np.int32)[0, ::2], before[0, ::2])
    assert np.all(values[0, 1::2] == -np.inf)


def test_no_rows_are_no_work(machine: Machine) -> None:
    values = np.ones((2, 32), np.float32)
    Bitmask(machine).apply(values, np.empty(0, np.int64), np.zeros((0, 1), np.int32), 1)
    assert np.array_equal(values, np.ones((2, 32)))


@pytest.mark.parametrize(("row", "num_words"), [(2, 1), (-1, 1), (0, 2)])
def test_it_refuses_to_write_outside(machine: Machine, row: int, num_words: int) -> None:
    values, masks = np.ones((2, 40), np.float32), np.zeros((1, 2), np.int32)
    with pytest.raises(AssertionError):
        Bitmask(machine).apply(values, np.array([row]), masks, num_words)

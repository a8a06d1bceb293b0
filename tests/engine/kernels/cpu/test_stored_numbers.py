"""Numbers as they are stored: read exactly, and rounded as torch rounds them."""

from pathlib import Path

import pytest
import torch
from vector_kernels import by_vectors

from vllm_obs.engine.kernels.cpu.emit import Emitter, Value
from vllm_obs.engine.kernels.cpu.jit import Machine
from vllm_obs.engine.kernels.cpu.stored_numbers import STORED_BYTES, load_numbers, narrowed


def converted(
    machine: Machine, folder: Path, source: torch.Tensor, stored: str, is_narrowing: bool
) -> torch.Tensor:
    """The numbers from float32 to how they are stored, or back."""
    target = torch.empty(source.shape, dtype=getattr(torch, stored if is_narrowing else "float32"))

    def change(emit: Emitter, pointer: Value, offset: Value) -> Value:
        if is_narrowing:
            return narrowed(emit, emit.load(pointer, offset, emit.vector), stored)
        return load_numbers(emit, pointer, offset, stored)

    return by_vectors(machine, folder, source, target, change)


def test_sizes_are_those_of_torch(stored: str) -> None:
    assert torch.empty(0, dtype=getattr(torch, stored)).element_size() == STORED_BYTES[stored]


@pytest.mark.parametrize("narrow", ["bfloat16", "float16"])
def test_every_16_bit_number_is_read_exactly(machine: Machine, narrow: str, tmp_path: Path) -> None:
    numbers = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(getattr(torch, narrow))
    read = converted(machine, tmp_path, numbers, narrow, is_narrowing=False)
    torch.testing.assert_close(read, numbers.float(), rtol=0, atol=0, equal_nan=True)


def test_numbers_are_rounded_to_nearest_even(machine: Machine, stored: str, tmp_path: Path) -> None:
    bits = torch.randint(-(1 << 31), 1 << 31, (1 << 16,), dtype=torch.int64).to(torch.int32)
    ties = torch.tensor([1.00390625, 1.01171875, 1.00048828125, 1.00146484375, 0.0, -0.0, 1e6, -torch.inf])
    numbers = torch.cat((bits.view(torch.float32), ties, torch.full((8,), torch.nan)))
    expected = numbers if stored != "float16" else numbers.clamp(-65504, 65504)
    written = converted(machine, tmp_path, numbers, stored, is_narrowing=True)
    torch.testing.assert_close(written, expected.to(written.dtype), rtol=0, atol=0, equal_nan=True)

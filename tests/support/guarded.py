"""Tensors between guards: what a kernel writes beside its output, or leaves unwritten in it, is found."""

import torch

_GUARD = 64
_POISON = {torch.int32: -77, torch.int64: -77, torch.uint8: 0x5A}


class Guarded:
    """An output full of poison (NaN, or a number no kernel writes), with more of it before and behind."""

    def __init__(self, *shape: int, dtype: torch.dtype) -> None:
        size = torch.Size(shape).numel()
        self._poison = _POISON.get(dtype, float("nan"))
        self._memory = torch.full((size + 2 * _GUARD,), self._poison, dtype=dtype)
        self.tensor = self._memory[_GUARD : _GUARD + size].view(shape)

    def poisoned(self, tensor: torch.Tensor) -> torch.Tensor:
        """Where the tensor still holds poison."""
        return tensor.isnan() if tensor.is_floating_point() else tensor == self._poison

    def check_guards(self) -> None:
        """Nothing was written outside the output."""
        before, behind = self._memory[:_GUARD], self._memory[-_GUARD:]
        assert self.poisoned(before).all(), "written before the output"
        assert self.poisoned(behind).all(), "written behind the output"

    def whole(self) -> torch.Tensor:
        """The output, every element of which was written, and nothing beside it."""
        self.check_guards()
        assert not self.poisoned(self.tensor).any(), "an element was not written"
        return self.tensor

"""How far results are from what they should be: over 1 + their size, or how many are not the same."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import torch

TOLERANCES = {torch.float32: 5e-6, torch.float16: 4e-3, torch.bfloat16: 4e-2}
"""As in docs/kernels.md."""

Found = tuple[str, float, Callable[[], float]]
"""A check's name, what is allowed, and what finds the difference."""


def difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest; infinite where an element was not written, or is no number."""
    wide = found.cpu().double()
    if wide.numel() == 0:
        return 0.0
    apart = (wide - expected.cpu().double()).abs() / (1.0 + expected.cpu().double().abs())
    apart = torch.where(wide == expected.cpu().double(), 0.0, apart)  # -inf is as it should be
    return float(apart.nan_to_num(nan=torch.inf).max())


def num_unequal(found: torch.Tensor, expected: torch.Tensor) -> float:
    """How many elements differ."""
    return float((found.cpu() != expected.cpu()).sum())


def unwritten(*shape: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor full of what no kernel writes."""
    poison = torch.nan if dtype.is_floating_point else 0x5A if dtype == torch.uint8 else -77
    return torch.full(shape, poison, dtype=dtype, device=device)


def on(device: torch.device, value: Any) -> Any:
    """A tensor, or the tensors of a dataclass, there."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(**{each.name: on(device, getattr(value, each.name)) for each in fields(value)})
    return value

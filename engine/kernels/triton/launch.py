"""A kernel's launch as a value: what runs on a device is exactly what is compiled ahead of time."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton

from vllm_obs.engine.kernels.triton.launch_work import LaunchWork, work_of

Pointer = Any
"""In a kernel: the address of a tensor's first element."""

Number = Any
"""In a kernel: an integer or a float that may differ from launch to launch."""

Tile = Any
"""In a kernel: a block of values held in registers."""

Argument = torch.Tensor | int | float
Constant = int | bool


def kernel(function: Callable[..., Any]) -> Any:
    """Compile `function` for each set of constants it meets; counts of rows and tokens are never constants."""
    changing = [name for name in function.__annotations__ if name.startswith("num_")]
    return triton.jit(function, do_not_specialize=changing)


def device_function(function: Callable[..., Any]) -> Any:
    """A function that kernels call."""
    return triton.jit(function)


class LaunchWatch(threading.local):
    """Who is told of a thread's launches, while a step is profiled or captured."""

    seen: Callable[[LaunchWork], None] | None = None


WATCH = LaunchWatch()


@dataclass(frozen=True)
class LaunchConfig:
    """How one kernel is cut up on one card. sizes: its BLOCK_… constants."""

    sizes: dict[str, int]
    num_warps: int
    num_stages: int


@dataclass(frozen=True)
class Launch:
    """One kernel with all it is given.

    grid: programs along up to three axes; none at all when one of them is 0. arguments and constants: by the names
    of the kernel's parameters.
    """

    kernel: Any
    grid: tuple[int, ...]
    arguments: dict[str, Argument]
    constants: dict[str, Constant]
    config: LaunchConfig

    @property
    def work(self) -> LaunchWork:
        """What it must move and compute."""
        return work_of(self.kernel.fn.__name__, {**self.arguments, **self.constants})

    @property
    def all_constants(self) -> dict[str, Constant]:
        """The kernel's constants, with the sizes of its configuration."""
        return {**self.constants, **self.config.sizes}

    def run(self) -> None:
        """Queue it on the current stream."""
        if 0 in self.grid:
            return
        if (seen := WATCH.seen) is not None:
            seen(self.work)
        config = self.config
        self.kernel[self.grid](
            **self.arguments, **self.all_constants, num_warps=config.num_warps, num_stages=config.num_stages
        )


def is_interpreted(compiled: Any) -> bool:
    """Whether a kernel runs under TRITON_INTERPRET, whose products of 16-bit numbers need a hand."""
    return not isinstance(compiled, triton.runtime.JITFunction)


def padded(size: int) -> int:
    """The least power of two that is not less."""
    return 1 << max(size - 1, 0).bit_length()

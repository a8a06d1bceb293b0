"""A GPU's memory: its numbers behind a port, and an error that says who holds what and which flags to change."""

import re
from typing import NamedTuple, Protocol

import torch

from vllm_obs.engine.errors import VllmObsError
from vllm_obs.engine.worker.memory import size_text

_SAYS_SO = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""What the driver and its libraries say of it, when it was not torch that asked for memory."""
_ASKED = re.compile(r"[Tt]ried to allocate (\d+(?:\.\d+)?) ([KMGT]?)(?:i?B|bytes)")
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_FLAGS = "lower --gpu-memory-utilization, --max-model-len or --max-num-seqs, or set --enforce-eager"


class OutOfGpuMemoryError(VllmObsError):
    """The GPU has less memory free than a step, the weights or the cache asked for."""


class GpuMemory(Protocol):
    """The memory of the current device, in bytes, as torch's allocator and the driver count it."""

    def free_and_total(self) -> tuple[int, int]:
        """What no process holds, and all there is."""

    def allocated(self) -> int:
        """What tensors of this process take."""

    def reserved(self) -> int:
        """What this process holds for tensors, those that are gone too."""

    def peak(self) -> int:
        """The most that tensors took since `watch_peak`."""

    def watch_peak(self) -> None:
        """Begin to look for the peak."""

    def settle(self) -> None:
        """Wait for all that is queued, and give back what no tensor takes."""


class CudaMemory:
    """The real one."""

    def free_and_total(self) -> tuple[int, int]:
        """What no process holds, and all there is."""
        free, total = torch.cuda.mem_get_info()
        return free, total

    def allocated(self) -> int:
        """What tensors of this process take."""
        return torch.cuda.memory_allocated()

    def reserved(self) -> int:
        """What this process holds for tensors, those that are gone too."""
        return torch.cuda.memory_reserved()

    def peak(self) -> int:
        """The most that tensors took since `watch_peak`."""
        return torch.cuda.max_memory_allocated()

    def watch_peak(self) -> None:
        """Begin to look for the peak."""
        torch.cuda.reset_peak_memory_stats()

    def settle(self) -> None:
        """Wait for all that is queued, and give back what no tensor takes."""
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


class MemoryHeld(NamedTuple):
    """What a worker holds of its GPU for good, in bytes."""

    weights: int = 0
    kv_cache: int = 0
    graphs: int = 0


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the GPU's memory was not enough: for torch, for a graph or a library, or for a kernel's code."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _SAYS_SO)


def out_of_memory(error: Exception, what: str, held: MemoryHeld, memory: GpuMemory) -> str:
    """One line: what was being done, asked, free and total, who holds how much, and the flags to change."""
    free, total = memory.free_and_total()
    asked = _asked_for(str(error))
    others = max(0, total - free - memory.reserved())
    return (
        f"out of GPU memory {what}: {asked} asked for, {size_text(free)} of {size_text(total)} free; "
        f"the weights hold {size_text(held.weights)}, the KV cache {size_text(held.kv_cache)}, "
        f"CUDA graphs {size_text(held.graphs)}, other processes {size_text(others)}; {_FLAGS}"
    )


def _asked_for(message: str) -> str:
    found = _ASKED.search(message)
    if found is None:
        return "an unknown amount"
    return size_text(round(float(found[1]) * 1024 ** _POWERS[found[2]]))

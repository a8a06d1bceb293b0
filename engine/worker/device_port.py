"""What a step asks of its device besides kernels: arrays there, results back, and the time between."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from vllm_obs.engine.attention.batch import TABLE_MULTIPLE

Array = npt.NDArray[Any]
Results = Callable[[], list[Array]]

ALIGNMENT = 128
"""Bytes. Triton compiles a kernel anew for a pointer that is not a multiple of 16."""


class Event(Protocol):
    """A point in the work that is queued on the device."""

    def record(self) -> None:
        """Put it behind all that is queued now."""

    def query(self) -> bool:
        """Whether the device has come to it; nobody waits."""

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds to a later one. The device must have come to both."""


class DevicePort(Protocol):
    """One device, as the runner and the sampler use it. Only what `download` returns ever waits for it."""

    device: torch.device
    table_multiple: int
    """Block tables are so many blocks wide, or a multiple of it: a kernel is compiled for a kind of width."""

    def upload(self, arrays: Sequence[Array]) -> list[torch.Tensor]:
        """These arrays on the device, in their shapes and dtypes. They may be changed once this has returned."""

    def download(self, tensors: Sequence[torch.Tensor]) -> Results:
        """Begin to fetch these; the call that is returned waits until they are there."""

    def event(self) -> Event | None:
        """One that is behind all that is queued now; None where the host is the device."""


class HostPort:
    """The CPU as its own device: arrays are tensors, and what was called is done."""

    table_multiple = 1

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    def upload(self, arrays: Sequence[Array]) -> list[torch.Tensor]:
        """Tensors over the same memory."""
        return [torch.from_numpy(array) for array in arrays]

    def download(self, tensors: Sequence[torch.Tensor]) -> Results:
        """They are here."""
        return lambda: [tensor.numpy() for tensor in tensors]

    def event(self) -> Event | None:
        """There is nothing between the host and itself."""
        return None


class CudaPort:
    """A CUDA device and its current stream. Not run on a card yet.

    Copies go through page-locked memory, which torch keeps for the next ones and hands out again only when the
    copies from it are over; no copy is waited for.
    """

    table_multiple = TABLE_MULTIPLE

    def __init__(self, device: torch.device, make_event: Callable[..., Any] = torch.cuda.Event) -> None:
        self.device = device
        self._make_event = make_event
        self._is_pinned = device.type == "cuda"

    def upload(self, arrays: Sequence[Array]) -> list[torch.Tensor]:
        """All of them by one copy."""
        places, num_bytes = packed_places(arrays)
        staged = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=self._is_pinned)
        pack(arrays, places, staged.numpy())
        return unpacked(arrays, places, staged.to(self.device, non_blocking=True))

    def download(self, tensors: Sequence[torch.Tensor]) -> Results:
        """A copy of each, and one event behind them."""
        hosts = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self._is_pinned) for tensor in tensors]
        for host, tensor in zip(hosts, tensors, strict=True):
            host.copy_(tensor, non_blocking=True)
        copied = self._make_event()
        copied.record()

        def results() -> list[Array]:
            copied.synchronize()
            return [host.numpy() for host in hosts]

        return results

    def event(self) -> Event | None:
        """A timed one."""
        event: Event = self._make_event(enable_timing=True)
        event.record()
        return event


def packed_places(arrays: Sequence[Array]) -> tuple[list[int], int]:
    """Where each array begins among all of them, in bytes, and how many bytes they are together, never none."""
    places, end = [], 0
    for array in arrays:
        places.append(end)
        end += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    return places, max(end, ALIGNMENT)


def pack(arrays: Sequence[Array], places: Sequence[int], target: Array) -> None:
    """Write the arrays to their places in `target`, uint8."""
    for array, place in zip(arrays, places, strict=True):
        target[place : place + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def unpacked(arrays: Sequence[Array], places: Sequence[int], packed: torch.Tensor) -> list[torch.Tensor]:
    """The arrays' tensors in their places of `packed`, uint8."""
    return [
        packed[place : place + array.nbytes].view(_dtype(array)).view(array.shape)
        for array, place in zip(arrays, places, strict=True)
    ]


def make_port(device: str) -> DevicePort:
    """The port of `cpu` or `cuda`."""
    if device == "cuda":
        return CudaPort(torch.device("cuda", torch.cuda.current_device()))
    return HostPort()


def _dtype(array: Array) -> torch.dtype:
    return torch.from_numpy(np.empty(0, array.dtype)).dtype

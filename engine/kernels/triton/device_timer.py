"""Timers of launches: by the device's events on a GPU, by the host's clock under the interpreter."""

import time
from collections.abc import Callable
from typing import Protocol

import torch

COVER_BYTES = 512 << 20
"""Written before each run: more than any card's cache holds, so that nothing a kernel reads is still in there; and
it takes the card longer than the host needs to queue a kernel, so that no launch is part of what is timed."""


class Timer(Protocol):
    """Who times."""

    def seconds(self, run: Callable[[], object]) -> float:
        """How long one run takes; what it raises goes on."""


class DeviceTimer:
    """By events on the current CUDA stream, with a cold cache."""

    def __init__(self) -> None:
        self._cover = torch.empty(COVER_BYTES, dtype=torch.uint8, device="cuda")

    def seconds(self, run: Callable[[], object]) -> float:
        """How long the device takes."""
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        self._cover.zero_()
        begun.record()
        run()
        ended.record()
        ended.synchronize()
        return float(begun.elapsed_time(ended)) / 1e3


class HostTimer:
    """By the host's clock: what runs on the CPU."""

    def seconds(self, run: Callable[[], object]) -> float:
        """How long the call takes."""
        begun = time.perf_counter()
        run()
        return time.perf_counter() - begun

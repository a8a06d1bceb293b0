"""A device behind the runner's port that is the CPU, packs arrays as a GPU's would, and writes down every call."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from vllm_obs.engine.worker.device_port import Array, Event, Results, pack, packed_places, unpacked

STEP_MS = 2.0
"""Between any two events that follow each other."""


@dataclass
class FakeEvent:
    """The `number`-th point in the work; the device comes to it when somebody waits for what is behind it."""

    number: int
    device: "FakeDevice"

    def record(self) -> None:
        raise AssertionError("it is recorded already")

    def query(self) -> bool:
        return self.number < self.device.num_reached

    def elapsed_time(self, end_event: "FakeEvent") -> float:
        assert end_event.query(), "the device has not come to them"
        self.device.calls.append(f"read event {self.number} to {end_event.number}")
        return STEP_MS * (end_event.number - self.number)


@dataclass
class FakeDevice:
    """Uploads go through one packed buffer; what is downloaded is there once it was waited for."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    table_multiple: int = 16
    calls: list[str] = field(default_factory=list)
    num_events: int = 0
    num_reached: int = 0

    def upload(self, arrays: Sequence[Array]) -> list[torch.Tensor]:
        self.calls.append("upload")
        places, num_bytes = packed_places(arrays)
        staged = np.full(num_bytes, 0xEE, np.uint8)
        pack(arrays, places, staged)
        return unpacked(arrays, places, torch.from_numpy(staged))

    def download(self, tensors: Sequence[torch.Tensor]) -> Results:
        self.calls.append("download")
        kept = [tensor.clone() for tensor in tensors]

        def results() -> list[Array]:
            self.calls.append("wait")
            self.num_reached = self.num_events
            return [tensor.numpy() for tensor in kept]

        return results

    def event(self) -> Event | None:
        self.calls.append(f"event {self.num_events}")
        self.num_events += 1
        return FakeEvent(self.num_events - 1, self)

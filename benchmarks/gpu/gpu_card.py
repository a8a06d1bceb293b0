"""What it all runs on: a GPU, or the CPU under Triton's interpreter; and its measured ceilings."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
from gpu_ceilings import Ceilings

from vllm_obs.engine.kernels.triton.configs import Configs, configs_for, configs_of_card
from vllm_obs.engine.kernels.triton.device_timer import DeviceTimer, HostTimer, Timer
from vllm_obs.telemetry.device_nvml import open_nvml

COPY_BYTES = 1 << 30
MATMUL_SIZE = 8192
NUM_RUNS = 15
DRY_COPY_BYTES, DRY_MATMUL_SIZE, DRY_RUNS = 1 << 20, 64, 1


@dataclass(frozen=True)
class Card:
    """`is_dry`: there is no GPU, all sizes are tiny and no figure means anything."""

    name: str
    capability: int
    driver: str
    device: torch.device
    configs: Configs
    table: str
    timer: Timer
    is_dry: bool

    @classmethod
    def current(cls) -> "Card":
        """The current CUDA device."""
        device = torch.device("cuda", torch.cuda.current_device())
        properties = torch.cuda.get_device_properties(device)
        capability = 10 * properties.major + properties.minor
        configs, table = configs_of_card(properties.name, capability)
        return cls(properties.name, capability, _driver(), device, configs, table, DeviceTimer(), is_dry=False)

    @classmethod
    def dry(cls) -> "Card":
        """The interpreter."""
        device = torch.device("cpu")
        return cls("Triton's interpreter", 90, "", device, configs_for(90), "sm_90.json", HostTimer(), is_dry=True)

    def facts(self) -> dict[str, Any]:
        """What stands above the figures."""
        return {
            "card": self.name,
            "capability": self.capability,
            "driver": self.driver,
            "kernel_table": self.table,
            "torch": torch.__version__,
            "triton": triton.__version__,
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "is_dry_run": self.is_dry,
        }

    def median_seconds(self, run: Callable[[], object]) -> float:
        """Of some runs after one that is not counted."""
        self.timer.seconds(run)
        return statistics.median(self.timer.seconds(run) for _ in range(DRY_RUNS if self.is_dry else NUM_RUNS))

    def is_lost(self) -> bool:
        """Whether no further work can be queued from this process: an error of the device stays."""
        if self.is_dry:
            return False
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            return True
        return False


def measure_ceilings(card: Card) -> Ceilings:
    """A large copy and a large matrix product."""
    num_bytes, size = (DRY_COPY_BYTES, DRY_MATMUL_SIZE) if card.is_dry else (COPY_BYTES, MATMUL_SIZE)
    source = torch.empty(num_bytes, dtype=torch.uint8, device=card.device)
    target = torch.empty_like(source)
    copied = card.median_seconds(lambda: target.copy_(source))
    left, right = (torch.randn(size, size, device=card.device, dtype=torch.bfloat16) for _ in range(2))
    multiplied = card.median_seconds(lambda: torch.mm(left, right))
    return Ceilings(2 * num_bytes / copied, 2 * size**3 / multiplied)


def _driver() -> str:
    nvml = open_nvml()
    if nvml is None or not nvml.begin():
        return "unknown"
    return next((reading.driver for reading in nvml.read()), "unknown")

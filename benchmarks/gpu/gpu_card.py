"""What it all runs on: a GPU, or the CPU under Triton's interpreter; and its measured ceilings."""

import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch
import triton
from gpu_budget import Part

from vllm_obs.engine.kernels.triton.configs import Configs, configs_for, configs_of_card
from vllm_obs.engine.kernels.triton.device_timer import DeviceTimer, HostTimer, Timer
from vllm_obs.telemetry.device_nvml import open_nvml

COPY_BYTES = 1 << 30
MATMUL_SIZE = 8192
NUM_RUNS = 15
DRY_COPY_BYTES, DRY_MATMUL_SIZE, DRY_RUNS = 1 << 20, 64, 2


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

    @property
    def num_runs(self) -> int:
        """Of which the median is taken."""
        return DRY_RUNS if self.is_dry else NUM_RUNS


@dataclass(frozen=True)
class Ceilings:
    """What the card was seen to do at best: bytes copied (read and written), and operations of a bf16 product."""

    bytes_per_second: float
    flops_per_second: float

    def floor_seconds(self, num_bytes: int, num_flops: int = 0) -> float:
        """The least time for so much work."""
        return max(num_bytes / self.bytes_per_second, num_flops / self.flops_per_second)

    def plain(self) -> dict[str, float]:
        """For the file."""
        return asdict(self)


def measure_ceilings(card: Card, part: Part) -> Ceilings:
    """A large copy and a large matrix product."""
    num_bytes, size = (DRY_COPY_BYTES, DRY_MATMUL_SIZE) if card.is_dry else (COPY_BYTES, MATMUL_SIZE)
    source = torch.empty(num_bytes, dtype=torch.uint8, device=card.device)
    target = torch.empty_like(source)
    copied = median_seconds(card, part, lambda: target.copy_(source))
    left, right = (torch.randn(size, size, device=card.device, dtype=torch.bfloat16) for _ in range(2))
    multiplied = median_seconds(card, part, lambda: torch.mm(left, right))
    return Ceilings(2 * num_bytes / copied, 2 * size**3 / multiplied)


def median_seconds(card: Card, part: Part, run: Any) -> float:
    """Of some runs after one that is not counted; fewer of them where the time is short, but never none."""
    card.timer.seconds(run)
    times = [card.timer.seconds(run)]
    while len(times) < card.num_runs and part.has_time():
        times.append(card.timer.seconds(run))
    return statistics.median(times)


def _driver() -> str:
    nvml = open_nvml()
    if nvml is None or not nvml.begin():
        return "unknown"
    return next((reading.driver for reading in nvml.read()), "unknown")

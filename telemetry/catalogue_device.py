"""DEVICE_METRICS: GPUs as their driver tells of them; there are none of these without one."""

from vllm_obs.telemetry.catalogue_row import Metric
from vllm_obs.telemetry.device_nvml import THROTTLE_REASONS

CLOCKS = ("sm", "memory")


def _device(name: str, text: str) -> Metric:
    return Metric(f"vllm_obs_device_{name}", "gauge", text, ("device",), needs_stats=False)


DEVICE_METRICS: tuple[Metric, ...] = (
    Metric(
        "vllm_obs_device_info",
        "gauge",
        "A GPU of the host; the value is 1.",
        ("device", "name", "uuid", "driver"),
        needs_stats=False,
    ),
    _device("up", "1 while the driver answers for the GPU; 0 when it lost it or hangs, and then all else is 0."),
    _device("utilization_ratio", "Share of the last instants in which some kernel ran; not how full the GPU was."),
    _device("memory_busy_ratio", "Share of the last instants in which the GPU's memory was read or written."),
    _device("memory_used_bytes", "Memory of the GPU in use, by all processes."),
    _device("memory_total_bytes", "Memory of the GPU."),
    _device("power_watts", "Power the GPU draws."),
    _device("power_limit_watts", "Power the GPU may draw."),
    Metric(
        "vllm_obs_device_clock_hertz",
        "gauge",
        "Clocks of the GPU.",
        ("device", "clock"),
        values={"clock": CLOCKS},
        needs_stats=False,
    ),
    _device("temperature_celsius", "Temperature of the GPU."),
    Metric(
        "vllm_obs_device_throttled",
        "gauge",
        "1 for each reason that holds the GPU's clocks down now; being idle is one.",
        ("device", "reason"),
        values={"reason": THROTTLE_REASONS},
        needs_stats=False,
    ),
)

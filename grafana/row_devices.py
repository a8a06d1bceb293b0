"""DEVICES: the GPUs as their driver tells of them; empty on servers without one."""

from vllm_obs.grafana.board import Row
from vllm_obs.grafana.panel import Levels, Panel, Query, Says
from vllm_obs.grafana.promql import highest, server

_DEVICE = ("instance", "device")
_NAME = "{{instance}} GPU {{device}}"
NO_GPU = "no GPU"


def _of_devices(title: str, metric: str, says: Says, unit: str, levels: Levels | None = None) -> Panel:
    query = Query(highest(server(f"vllm_obs_device_{metric}"), *_DEVICE), _NAME)
    return Panel(title, says, (query,), unit=unit, levels=levels, page="processes", idle=NO_GPU)


DEVICES = Row(
    "GPUs",
    (
        _of_devices(
            "GPU busy",
            "utilization_ratio",
            Says(
                "Do the GPUs run kernels all the time?",
                "the share of the last instants in which some kernel ran, whatever part of the GPU it used.",
                "near 100 % under load. Less: it waits for the host, see the engine's steps.",
                "Processes and telemetry: GPU memory busy",
            ),
            "percentunit",
        ),
        _of_devices(
            "GPU memory busy",
            "memory_busy_ratio",
            Says(
                "Is the GPUs' memory read all the time?",
                "the share of the last instants in which memory was read or written.",
                "high while small batches decode: they wait for memory.",
                "Processes and telemetry: GPU busy",
            ),
            "percentunit",
        ),
        Panel(
            "GPU memory",
            Says(
                "How full is the GPUs' memory?",
                "memory in use, by all processes of the host, over all of it.",
                "about --gpu-memory-utilization, and flat.",
                "KV cache: Blocks by state",
            ),
            (
                Query(
                    f"{highest(server('vllm_obs_device_memory_used_bytes'), *_DEVICE)}"
                    f" / {highest(server('vllm_obs_device_memory_total_bytes'), *_DEVICE)}",
                    _NAME,
                ),
            ),
            unit="percentunit",
            levels=Levels(0.97, 0.99),
            page="processes",
            idle=NO_GPU,
        ),
        Panel(
            "GPU power",
            Says(
                "Do the GPUs draw all the power they may?",
                "power drawn over the limit in force.",
                "below 100 %. At the limit clocks go down: see what holds them down.",
                "Processes and telemetry: GPU clocks held down",
            ),
            (
                Query(
                    f"{highest(server('vllm_obs_device_power_watts'), *_DEVICE)}"
                    f" / {highest(server('vllm_obs_device_power_limit_watts'), *_DEVICE)}",
                    _NAME,
                ),
            ),
            unit="percentunit",
            page="processes",
            idle=NO_GPU,
        ),
        Panel(
            "GPU clocks",
            Says(
                "How fast do the GPUs run?",
                "clocks of the multiprocessors and of memory.",
                "flat under load.",
                "Processes and telemetry: GPU clocks held down",
            ),
            (
                Query(
                    highest(server("vllm_obs_device_clock_hertz"), *_DEVICE, "clock"),
                    f"{_NAME} {{{{clock}}}}",
                ),
            ),
            unit="hertz",
            page="processes",
            idle=NO_GPU,
        ),
        Panel(
            "GPU clocks held down",
            Says(
                "What holds the GPUs' clocks down?",
                "1 for each reason that is in force, the most over the chosen GPUs; idle is one too.",
                "power_cap at most. Thermal reasons and power_brake are the room's or the host's fault.",
                "Processes and telemetry: GPU temperature",
            ),
            (
                Query(
                    highest(server("vllm_obs_device_throttled"), "instance", "reason"), "{{instance}} {{reason}}"
                ),
            ),
            unit="none",
            page="processes",
            idle=NO_GPU,
        ),
        _of_devices(
            "GPU temperature",
            "temperature_celsius",
            Says(
                "Do the GPUs get too hot?",
                "temperature of each GPU.",
                "below 85 °C.",
                "Processes and telemetry: GPU clocks held down",
            ),
            "celsius",
            Levels(85, 92),
        ),
        _of_devices(
            "GPUs that answer",
            "up",
            Says(
                "Is a GPU lost, or does its driver hang?",
                "1 while the driver answers for a GPU, 0 when it lost it or has not answered for five seconds.",
                "1 everywhere.",
                "Processes and telemetry: Incidents by cause",
            ),
            "none",
            Levels(1, 0.5, is_low_bad=True),
        ),
        Panel(
            "GPUs",
            Says(
                "Which GPUs are there?",
                "GPUs by their name and the driver's version.",
                "one driver, unless an upgrade is under way.",
                "Processes and telemetry: GPUs that answer",
            ),
            (
                Query(
                    f"count by (name, driver) ({server('vllm_obs_device_info')})",
                    "{{name}}, driver {{driver}}",
                    True,
                ),
            ),
            page="processes",
            idle=NO_GPU,
        ),
    ),
)

"""The inspector's view of GPUs: a row each, with what holds its clocks down in words."""

from typing import Any

from vllm_obs.telemetry.device_nvml import IDLE, DeviceReading, throttle_names
from vllm_obs.telemetry.device_reader import DeviceReader


def devices_view(reader: DeviceReader | None, now: int) -> dict[str, Any]:
    """Plain values; no device where there is none, and of a recording."""
    latest = reader.latest if reader is not None else None
    if reader is None or latest is None:
        return {"devices": [], "age_seconds": None, "is_stale": False}
    return {
        "devices": [_row(reading) for reading in latest.devices],
        "age_seconds": reader.age_seconds(now),
        "is_stale": reader.is_stale(now),
    }


def _row(reading: DeviceReading) -> dict[str, Any]:
    row = reading._asdict()
    bits = row.pop("throttle_bits")
    row["throttled_by"] = None if bits is None else [name for name in throttle_names(bits) if name != IDLE]
    return row

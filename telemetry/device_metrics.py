"""DeviceMetrics: the levels of each GPU, as they were read last."""

from vllm_obs.telemetry.catalogue_device import CLOCKS, DEVICE_METRICS
from vllm_obs.telemetry.device_nvml import THROTTLE_REASONS, DeviceReading, throttle_names
from vllm_obs.telemetry.device_reader import DeviceReader
from vllm_obs.telemetry.metric_store import MetricStore

PREFIX = "vllm_obs_device_"
_INFO = PREFIX + "info"
_LEVELS = {
    "utilization_ratio": "utilization",
    "memory_busy_ratio": "memory_busy",
    "memory_used_bytes": "used_bytes",
    "memory_total_bytes": "total_bytes",
    "power_watts": "power_watts",
    "power_limit_watts": "power_limit_watts",
    "temperature_celsius": "temperature_celsius",
}
"""Name without the prefix → field of the reading."""


class DeviceMetrics:
    """Sets the levels before a scrape; those of a GPU that is gone, or of a driver that hangs, go to zero."""

    def __init__(self, store: MetricStore, reader: DeviceReader) -> None:
        self._store = store
        self._reader = reader
        self._levels = [store.families[each.name] for each in DEVICE_METRICS if each.name != _INFO]

    def refresh(self, now: int) -> None:
        """Show what was read last."""
        for family in self._levels:  # also those that came from another Observer's checkpoint
            for labels in family.series:
                family.value(*labels).set(0)
        latest = self._reader.latest
        if latest is not None and not self._reader.is_stale(now):
            for reading in latest.devices:
                self._show(reading)

    def _show(self, reading: DeviceReading) -> None:
        device = str(reading.number)
        self._store.value(_INFO, device, reading.name, reading.uuid, reading.driver).set(1)
        self._store.value(PREFIX + "up", device).set(not reading.is_lost)
        for name, field in _LEVELS.items():
            self._set(getattr(reading, field), name, device)
        for clock in CLOCKS:
            self._set(getattr(reading, f"{clock}_clock_hertz"), "clock_hertz", device, clock)
        if reading.throttle_bits is not None:
            named = throttle_names(reading.throttle_bits)
            for reason in THROTTLE_REASONS:
                self._set(reason in named, "throttled", device, reason)

    def _set(self, level: float | None, name: str, *labels: str) -> None:
        """What a GPU never tells has no series."""
        if level is not None:
            self._store.value(PREFIX + name, *labels).set(level)

"""Nvml: what the driver of NVIDIA devices tells of them, through its management library by ctypes."""

import ctypes
import logging
import os
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_uint, c_ulonglong, c_void_p
from typing import Any, NamedTuple

LIBRARY = "libnvidia-ml.so.1"
"""It comes with the driver."""
MAX_DEVICES = 64
VISIBLE = "CUDA_VISIBLE_DEVICES"
_HIDES_ALL = ("", "-1")

_SUCCESS, _GPU_IS_LOST = 0, 15
_NAME_BYTES = 96
_TEMPERATURE_OF_GPU = 0
_SM_CLOCK, _MEMORY_CLOCK = 1, 2
_MEGA, _MILLI = 1_000_000, 1e-3

THROTTLE_BITS = {
    0x001: "idle",
    0x002: "clock_setting",
    0x004: "power_cap",
    0x008: "hardware",
    0x010: "sync_boost",
    0x020: "thermal",
    0x040: "hardware_thermal",
    0x080: "power_brake",
    0x100: "display_clock",
}
"""What holds a device's clocks down (nvml.h, nvmlClocksThrottleReason…). Idle is a reason too, and no trouble."""
THROTTLE_REASONS = tuple(THROTTLE_BITS.values())
IDLE = THROTTLE_BITS[0x001]

_logger = logging.getLogger(__name__)


class _Utilization(Structure):
    _fields_ = (("gpu", c_uint), ("memory", c_uint))


class _Memory(Structure):
    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "nvmlInit_v2": (),
    "nvmlDeviceGetCount_v2": (POINTER(c_uint),),
    "nvmlDeviceGetHandleByIndex_v2": (c_uint, POINTER(c_void_p)),
    "nvmlSystemGetDriverVersion": (c_char_p, c_uint),
    "nvmlDeviceGetName": (c_void_p, c_char_p, c_uint),
    "nvmlDeviceGetUUID": (c_void_p, c_char_p, c_uint),
    "nvmlDeviceGetUtilizationRates": (c_void_p, POINTER(_Utilization)),
    "nvmlDeviceGetMemoryInfo": (c_void_p, POINTER(_Memory)),
    "nvmlDeviceGetPowerUsage": (c_void_p, POINTER(c_uint)),
    "nvmlDeviceGetEnforcedPowerLimit": (c_void_p, POINTER(c_uint)),
    "nvmlDeviceGetClockInfo": (c_void_p, c_int, POINTER(c_uint)),
    "nvmlDeviceGetTemperature": (c_void_p, c_int, POINTER(c_uint)),
    "nvmlDeviceGetCurrentClocksThrottleReasons": (c_void_p, POINTER(c_ulonglong)),
}
"""Parameters of what is called; all of it has been the same since the first versions of the library."""


class DeviceReading(NamedTuple):
    """One device at one moment, by its number; None for what it does not tell.

    utilization: share of the last instants (a second at most) in which a kernel ran; memory_busy: in which memory
    was read or written. throttle_bits: of THROTTLE_BITS. `is_lost`: the driver has lost the device.
    """

    number: int
    uuid: str
    name: str
    driver: str
    utilization: float | None = None
    memory_busy: float | None = None
    used_bytes: int | None = None
    total_bytes: int | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    sm_clock_hertz: int | None = None
    memory_clock_hertz: int | None = None
    temperature_celsius: int | None = None
    throttle_bits: int | None = None
    is_lost: bool = False


def throttle_names(bits: int) -> list[str]:
    """The reasons in words; what a newer driver has added is left out."""
    return [name for bit, name in THROTTLE_BITS.items() if bits & bit]


class Nvml:
    """Reads all devices of the host that CUDA_VISIBLE_DEVICES leaves. A call may hang when the driver does."""

    def __init__(self, library: Any, visible: str | None = None) -> None:
        self._library = library
        self._visible = visible
        self._identities: dict[int, tuple[str, str]] = {}
        self._driver = ""

    def begin(self) -> bool:
        """Whether the driver is there and answers."""
        if self._code("nvmlInit_v2") != _SUCCESS:
            return False
        self._driver = self._text("nvmlSystemGetDriverVersion") or ""
        return True

    def read(self) -> list[DeviceReading]:
        """Every device now."""
        count = self._unsigned("nvmlDeviceGetCount_v2") or 0
        readings = [self._device(index) for index in range(min(count, MAX_DEVICES))]
        return [each for each in readings if is_visible(each.number, each.uuid, self._visible)]

    def _device(self, index: int) -> DeviceReading:
        handle = c_void_p()
        code = self._code("nvmlDeviceGetHandleByIndex_v2", index, byref(handle))
        if code != _SUCCESS:
            return DeviceReading(index, *self._identities.get(index, ("", "")), self._driver, is_lost=True)
        if index not in self._identities:
            names = (self._text(f"nvmlDeviceGet{what}", handle) or "" for what in ("UUID", "Name"))
            self._identities[index] = (next(names), next(names))
        reading = DeviceReading(index, *self._identities[index], self._driver)
        busy, memory = _Utilization(), _Memory()
        code = self._code("nvmlDeviceGetUtilizationRates", handle, byref(busy))
        if code == _GPU_IS_LOST:
            return reading._replace(is_lost=True)
        if code == _SUCCESS:
            reading = reading._replace(utilization=busy.gpu / 100, memory_busy=busy.memory / 100)
        if self._code("nvmlDeviceGetMemoryInfo", handle, byref(memory)) == _SUCCESS:
            reading = reading._replace(used_bytes=memory.used, total_bytes=memory.total)
        return reading._replace(
            power_watts=_times(self._unsigned("nvmlDeviceGetPowerUsage", handle), _MILLI),
            power_limit_watts=_times(self._unsigned("nvmlDeviceGetEnforcedPowerLimit", handle), _MILLI),
            sm_clock_hertz=_times(self._unsigned("nvmlDeviceGetClockInfo", handle, _SM_CLOCK), _MEGA),
            memory_clock_hertz=_times(self._unsigned("nvmlDeviceGetClockInfo", handle, _MEMORY_CLOCK), _MEGA),
            temperature_celsius=self._unsigned("nvmlDeviceGetTemperature", handle, _TEMPERATURE_OF_GPU),
            throttle_bits=self._long("nvmlDeviceGetCurrentClocksThrottleReasons", handle),
        )

    def _unsigned(self, name: str, *arguments: Any) -> int | None:
        found = c_uint()
        return found.value if self._code(name, *arguments, byref(found)) == _SUCCESS else None

    def _long(self, name: str, *arguments: Any) -> int | None:
        found = c_ulonglong()
        return found.value if self._code(name, *arguments, byref(found)) == _SUCCESS else None

    def _text(self, name: str, *arguments: Any) -> str | None:
        text = ctypes.create_string_buffer(_NAME_BYTES)
        is_there = self._code(name, *arguments, text, _NAME_BYTES) == _SUCCESS
        return text.value.decode(errors="replace") if is_there else None

    def _code(self, name: str, *arguments: Any) -> int:
        """What the library returns; -1 where it has no such function."""
        function = getattr(self._library, name, None)
        if function is None:
            return -1
        function.argtypes, function.restype = _SIGNATURES[name], c_int
        return int(function(*arguments))


def open_nvml() -> Nvml | None:
    """The host's, before it has begun; None where the driver's library is not installed."""
    try:
        return Nvml(ctypes.CDLL(LIBRARY), os.environ.get(VISIBLE))
    except OSError as error:
        _logger.debug("no figures of devices: %s", error)
        return None


def is_visible(index: int, uuid: str, visible: str | None) -> bool:
    """Whether CUDA_VISIBLE_DEVICES names a device, by its number or the beginning of its UUID.

    Numbers are taken in the order of the bus (CUDA_DEVICE_ORDER=PCI_BUS_ID). Empty or -1 hides all, as for CUDA;
    what names parts of devices (MIG) or cannot be read hides none.
    """
    if visible is None:
        return True
    if visible.strip() in _HIDES_ALL:
        return False
    names = [name.strip() for name in visible.split(",") if name.strip()]
    if not all(name.isdigit() or name.startswith("GPU-") for name in names):
        return True
    return str(index) in names or any(uuid.startswith(name) for name in names if name[0] == "G")


def _times(value: int | None, factor: float) -> Any:
    return None if value is None else value * factor

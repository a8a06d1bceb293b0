"""A driver's management library in Python, called as the real one is: C functions of the same names."""

import ctypes
from ctypes import CFUNCTYPE, c_int, c_uint, c_ulonglong, c_void_p
from dataclasses import dataclass, field
from typing import Any

SUCCESS, NOT_SUPPORTED, LOST, NOT_LOADED = 0, 3, 15, 9
_CLOCKS = {1: 1980, 2: 2619}


@dataclass
class FakeCard:
    """What the library says of one."""

    name: str = "NVIDIA H200"
    uuid: str = "GPU-1b2c"
    gpu_percent: int = 97
    memory_percent: int = 61
    used_bytes: int = 120 << 30
    total_bytes: int = 141 << 30
    power_milliwatts: int = 689_500
    throttle_bits: int = 0x004 | 0x020
    is_lost: bool = False
    has_power: bool = True


@dataclass
class FakeNvml:
    """The library; `functions` keeps its callbacks alive. `is_loaded`: whether there is a driver below it."""

    cards: list[FakeCard]
    is_loaded: bool = True
    functions: list[Any] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        method = type(self).__dict__.get(name.removeprefix("nvml"))
        if not name.startswith("nvml") or method is None:
            raise AttributeError(name)
        names = method.__annotations__
        made = CFUNCTYPE(c_int, *(kind for key, kind in names.items() if key != "return"))
        function = made(lambda *arguments: method(self, *arguments))
        self.functions.append(function)
        return function

    def Init_v2(self) -> c_int:  # noqa: N802 - the library's name
        return SUCCESS if self.is_loaded else NOT_LOADED

    def DeviceGetCount_v2(self, count: c_void_p) -> c_int:  # noqa: N802
        return _put(count, c_uint, len(self.cards))

    def DeviceGetHandleByIndex_v2(self, index: c_uint, handle: c_void_p) -> c_int:  # noqa: N802
        return _put(handle, c_void_p, 1000 + index)

    def SystemGetDriverVersion(self, text: c_void_p, length: c_uint) -> c_int:  # noqa: N802
        return _write(text, length, "575.57.08")

    def DeviceGetName(self, handle: c_void_p, text: c_void_p, length: c_uint) -> c_int:  # noqa: N802
        return _write(text, length, self._card(handle).name)

    def DeviceGetUUID(self, handle: c_void_p, text: c_void_p, length: c_uint) -> c_int:  # noqa: N802
        return _write(text, length, self._card(handle).uuid)

    def DeviceGetUtilizationRates(self, handle: c_void_p, rates: c_void_p) -> c_int:  # noqa: N802
        card = self._card(handle)
        if card.is_lost:
            return LOST
        return _put_all(rates, c_uint, card.gpu_percent, card.memory_percent)

    def DeviceGetMemoryInfo(self, handle: c_void_p, memory: c_void_p) -> c_int:  # noqa: N802
        card = self._card(handle)
        free = card.total_bytes - card.used_bytes
        return _put_all(memory, c_ulonglong, card.total_bytes, free, card.used_bytes)

    def DeviceGetPowerUsage(self, handle: c_void_p, milliwatts: c_void_p) -> c_int:  # noqa: N802
        card = self._card(handle)
        return _put(milliwatts, c_uint, card.power_milliwatts) if card.has_power else NOT_SUPPORTED

    def DeviceGetEnforcedPowerLimit(self, handle: c_void_p, milliwatts: c_void_p) -> c_int:  # noqa: N802
        return _put(milliwatts, c_uint, 700_000) if self._card(handle).has_power else NOT_SUPPORTED

    def DeviceGetClockInfo(self, handle: c_void_p, clock: c_int, megahertz: c_void_p) -> c_int:  # noqa: N802
        return _put(megahertz, c_uint, _CLOCKS[clock])

    def DeviceGetTemperature(self, handle: c_void_p, sensor: c_int, degrees: c_void_p) -> c_int:  # noqa: N802
        return _put(degrees, c_uint, 71)

    def DeviceGetCurrentClocksThrottleReasons(self, handle: c_void_p, reasons: c_void_p) -> c_int:  # noqa: N802
        return _put(reasons, c_ulonglong, self._card(handle).throttle_bits)

    def _card(self, handle: int) -> FakeCard:
        return self.cards[handle - 1000]


def _put(address: Any, kind: Any, value: int) -> Any:
    return _put_all(address, kind, value)


def _put_all(address: Any, kind: Any, *values: int) -> Any:
    (kind * len(values)).from_address(address)[:] = values
    return SUCCESS


def _write(address: Any, length: Any, text: str) -> Any:
    raw = text.encode() + b"\0"
    assert len(raw) <= length
    ctypes.memmove(address, raw, len(raw))
    return SUCCESS

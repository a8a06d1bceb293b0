"""GPUs by their driver's library: values, a device that is lost, a driver that hangs, and none at all."""

import threading
from typing import Any

import pytest
from fake_nvml import FakeCard, FakeNvml

from vllm_obs.telemetry import device_nvml
from vllm_obs.telemetry.catalogue import CATALOGUE
from vllm_obs.telemetry.device_metrics import DeviceMetrics
from vllm_obs.telemetry.device_nvml import (
    THROTTLE_BITS,
    DeviceReading,
    Nvml,
    is_visible,
    open_nvml,
    throttle_names,
)
from vllm_obs.telemetry.device_reader import STALE_SECONDS, DeviceReader, Readings
from vllm_obs.telemetry.device_view import devices_view
from vllm_obs.telemetry.metric_store import MetricStore

S = 1_000_000_000
READING = DeviceReading(
    number=0,
    uuid="GPU-1b2c",
    name="NVIDIA H200",
    driver="575.57.08",
    utilization=0.97,
    memory_busy=0.61,
    used_bytes=120 << 30,
    total_bytes=141 << 30,
    power_watts=689.5,
    power_limit_watts=700.0,
    sm_clock_hertz=1_980_000_000,
    memory_clock_hertz=2_619_000_000,
    temperature_celsius=71,
    throttle_bits=0x024,
)


def begun(library: FakeNvml, visible: str | None = None) -> Nvml:
    nvml = Nvml(library, visible)
    assert nvml.begin()
    return nvml


def test_a_device_is_read_through_the_library() -> None:
    assert begun(FakeNvml([FakeCard()])).read() == [READING]


def test_what_a_device_does_not_tell_is_none() -> None:
    (reading,) = begun(FakeNvml([FakeCard(has_power=False)])).read()
    assert reading == READING._replace(power_watts=None, power_limit_watts=None)


def test_a_library_without_a_function_does_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(FakeNvml, "DeviceGetCurrentClocksThrottleReasons")
    assert begun(FakeNvml([FakeCard()])).read() == [READING._replace(throttle_bits=None)]


def test_a_device_that_is_lost_in_the_middle_keeps_its_name_only() -> None:
    cards = [FakeCard(), FakeCard(uuid="GPU-9", is_lost=False)]
    nvml = begun(FakeNvml(cards))
    nvml.read()
    cards[1].is_lost = True
    first, second = nvml.read()
    assert first == READING
    assert second == DeviceReading(1, "GPU-9", "NVIDIA H200", "575.57.08", is_lost=True)


def test_a_library_without_a_driver_does_not_begin() -> None:
    assert not Nvml(FakeNvml([], is_loaded=False)).begin()


def test_no_library_is_no_trouble(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(device_nvml, "LIBRARY", "libnothing-of-this-name.so.1")
    with caplog.at_level("DEBUG", logger="vllm_obs.telemetry.device_nvml"):
        assert open_nvml() is None
    (record,) = caplog.records
    assert (record.levelname, "no figures of devices" in record.message) == ("DEBUG", True)


def test_reasons_are_named_and_unknown_bits_left_out() -> None:
    assert throttle_names(0x1 | 0x4 | 0x40 | 1 << 40) == ["idle", "power_cap", "hardware_thermal"]
    assert throttle_names(0) == []
    assert all(bit & (bit - 1) == 0 for bit in THROTTLE_BITS)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [0, 1]),
        ("", []),
        ("-1", []),
        ("1", [1]),
        ("1, 0", [0, 1]),
        ("GPU-9", [1]),
        ("MIG-3", [0, 1]),
        ("x", [0, 1]),
    ],
)
def test_only_devices_that_the_run_may_use_are_shown(visible: str | None, expected: list[int]) -> None:
    nvml = begun(FakeNvml([FakeCard(), FakeCard(uuid="GPU-9f")]), visible)
    assert [each.number for each in nvml.read()] == expected
    assert is_visible(7, "GPU-x", visible) == (visible in (None, "MIG-3", "x"))


class Driver:
    """A driver that says what it is told to, hangs or breaks."""

    def __init__(self, is_there: bool = True) -> None:
        self.is_there = is_there
        self.readings = [READING]
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.was_asked = threading.Semaphore(0)

    def begin(self) -> bool:
        return self.is_there

    def read(self) -> list[DeviceReading]:
        self.was_asked.release()
        self.may_go_on.wait(20)
        return self.readings


def wait_for_end(reader: DeviceReader) -> None:
    assert reader._thread is not None
    reader._thread.join(20)
    assert not reader._thread.is_alive()


def test_the_reader_reads_again_and_again_and_ends() -> None:
    driver, numbers = Driver(), iter(range(10**6))
    reader = DeviceReader(lambda: driver, lambda: next(numbers), read_seconds=0.001)
    reader.start()
    for _ in range(3):
        assert driver.was_asked.acquire(timeout=20)
    reader.close()
    assert reader.latest is not None
    assert reader.latest.devices == [READING]


def test_a_driver_that_hangs_holds_up_nobody() -> None:
    driver = Driver()
    driver.may_go_on.clear()
    reader = DeviceReader(lambda: driver, lambda: 0)
    reader.start()
    assert driver.was_asked.acquire(timeout=20)
    assert (reader.latest, reader.is_stale(99 * S)) == (None, False)
    reader.close()
    driver.may_go_on.set()
    wait_for_end(reader)


@pytest.mark.parametrize("driver", [None, Driver(is_there=False)])
def test_without_a_driver_there_are_no_figures(driver: Driver | None) -> None:
    reader = DeviceReader(lambda: driver)
    reader.start()
    reader.close()
    assert reader.latest is None
    assert devices_view(reader, 0) == devices_view(None, 0) == {
        "devices": [], "age_seconds": None, "is_stale": False,
    }  # fmt: skip


def test_a_driver_that_breaks_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    driver = Driver()
    driver.read = lambda: 1 / 0  # type: ignore[method-assign, assignment, return-value]
    reader = DeviceReader(lambda: driver)
    reader.start()
    wait_for_end(reader)
    assert "figures of devices are given up" in caplog.text


def shown(reader: DeviceReader, now: int, metrics: DeviceMetrics, store: MetricStore) -> dict[str, Any]:
    metrics.refresh(now)
    return {
        f"{name.removeprefix('vllm_obs_device_')} {' '.join(labels)}": series.number  # type: ignore[union-attr]
        for name, family in store.families.items()
        if name.startswith("vllm_obs_device_")
        for labels, series in family.series.items()
    }


def test_metrics_are_of_the_last_reading_and_zero_when_the_device_is_gone_or_hangs() -> None:
    store, reader = MetricStore(CATALOGUE), DeviceReader(lambda: None)
    metrics = DeviceMetrics(store, reader)
    assert shown(reader, 0, metrics, store) == {}
    reader.latest = Readings(S, [READING])
    found = shown(reader, 2 * S, metrics, store)
    throttled = {name: level for name, level in found.items() if name.startswith("throttled")}
    assert {name for name, level in throttled.items() if level} == {"throttled 0 power_cap", "throttled 0 thermal"}
    assert len(throttled) == len(THROTTLE_BITS)
    assert {name: level for name, level in found.items() if name not in throttled} == {
        "info 0 NVIDIA H200 GPU-1b2c 575.57.08": 1,
        "up 0": 1,
        "utilization_ratio 0": 0.97,
        "memory_busy_ratio 0": 0.61,
        "memory_used_bytes 0": 120 << 30,
        "memory_total_bytes 0": 141 << 30,
        "power_watts 0": 689.5,
        "power_limit_watts 0": 700.0,
        "clock_hertz 0 sm": 1_980_000_000,
        "clock_hertz 0 memory": 2_619_000_000,
        "temperature_celsius 0": 71,
    }
    of_a_hung_driver = shown(reader, int((STALE_SECONDS + 2) * S), metrics, store)
    reader.latest = Readings(9 * S, [DeviceReading(0, "GPU-1b2c", "NVIDIA H200", "575.57.08", is_lost=True)])
    of_a_lost_device = shown(reader, 9 * S, metrics, store)
    assert of_a_hung_driver == of_a_lost_device
    assert {name for name, level in of_a_lost_device.items() if level} == {"info 0 NVIDIA H200 GPU-1b2c 575.57.08"}


def test_the_inspector_has_a_row_for_each_device() -> None:
    reader = DeviceReader(lambda: None)
    reader.latest = Readings(S, [READING._replace(throttle_bits=0x001 | 0x004)])
    view = devices_view(reader, 3 * S)
    assert (view["age_seconds"], view["is_stale"]) == (2.0, False)
    (row,) = view["devices"]
    assert row["throttled_by"] == ["power_cap"], "idle is no trouble"
    assert row["name"] == "NVIDIA H200"
    assert "throttle_bits" not in row
    assert devices_view(reader, 99 * S)["is_stale"]

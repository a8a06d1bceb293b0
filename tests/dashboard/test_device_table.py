"""The table of GPUs on the processes page: a row each, and nothing where there are none."""

from typing import Any

from inspector_pages import shown, texts
from observer_states import KeptSource, answers_of

from vllm_obs.dashboard.device_table import held_down_by

ROW = {
    "number": 0, "uuid": "GPU-1", "name": "NVIDIA H200", "driver": "575.57.08", "utilization": 0.97,
    "memory_busy": 0.61, "used_bytes": 120 << 30, "total_bytes": 141 << 30, "power_watts": 689.5,
    "power_limit_watts": 700.0, "sm_clock_hertz": 1_980_000_000, "memory_clock_hertz": 2_619_000_000,
    "temperature_celsius": 71, "is_lost": False, "throttled_by": ["power_cap", "thermal"],
}  # fmt: skip
UNKNOWN = dict.fromkeys(ROW) | {"number": 1, "name": "Tesla", "is_lost": True}


def with_devices(*rows: dict[str, Any], is_stale: bool = False) -> KeptSource:
    answers = answers_of("idle")
    answers["/inspect/devices"] = {"devices": list(rows), "age_seconds": 12.0, "is_stale": is_stale}
    return KeptSource(answers)


def test_each_gpu_has_a_row() -> None:
    page = shown("processes", with_devices(ROW, UNKNOWN))
    assert not page.exception
    table = next(element.value for element in page.dataframe if "GPU" in element.value)
    assert table.iloc[0].tolist() == [
        "0 NVIDIA H200", "97 %", "61 %", "120 GiB of 141 GiB", "690 of 700 W", "1\u202f980 MHz", "2\u202f619 MHz",
        "71 °C", "power cap, thermal",
    ]  # fmt: skip
    assert table.iloc[1].tolist() == ["1 Tesla", *["–"] * 7, "the driver has lost this GPU"]


def test_a_driver_that_hangs_is_told_in_words() -> None:
    assert "The driver has not answered for 12.0 s" in texts(shown("processes", with_devices(ROW, is_stale=True)))


def test_without_gpus_there_is_no_table() -> None:
    for source in (with_devices(), KeptSource(answers_of("idle"))):
        page = shown("processes", source)
        assert not page.exception
        assert not any("GPU" in element.value for element in page.dataframe)


def test_nothing_that_holds_it_down_is_said_so() -> None:
    assert held_down_by(ROW | {"throttled_by": []}) == "nothing"

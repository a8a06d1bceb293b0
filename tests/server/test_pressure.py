"""The ladder of measures: what is refused at which pressure, and how it is lifted again."""

import logging
from typing import Any

import pytest

from vllm_obs.server.errors import ApiError
from vllm_obs.server.pressure import SOURCES, Measure, Pressure, memory_pressure
from vllm_obs.telemetry.catalogue_own import PRESSURE_SOURCES
from vllm_obs.telemetry.memory_room import MemoryRoom

EASY = MemoryRoom(100, 50)
ASKED: dict[str, dict[str, Any]] = {
    "plain": {},
    "several": {"num_sequences": 2},
    "background": {"is_background": True},
    "low": {"priority": 1},
    "high": {"priority": -1},
}


def refused(pressure: Pressure) -> set[str]:
    """Who is refused now."""
    return {name for name, asked in ASKED.items() if is_refused(pressure, asked)}


def is_refused(pressure: Pressure, asked: dict[str, Any]) -> bool:
    try:
        pressure.check(**asked)
    except ApiError as error:
        return (error.status, error.reason) == (429, "under_pressure")
    return False


def test_each_step_refuses_more() -> None:
    pressure = Pressure()
    found = []
    for value in (0.5, 0.8, 0.9, 1.0):
        pressure.take({"memory": value})
        found.append(refused(pressure))
    assert found == [set(), {"several", "background"}, {"several", "background", "low"}, set(ASKED)]


def test_a_measure_stays_until_the_pressure_is_well_below() -> None:
    pressure = Pressure()
    measures = []
    for value in (1.0, 0.95, 0.91, 0.89, 0.81, 0.75, 0.71, 0.69, 0.79, 0.8):
        pressure.take({"memory": value})
        measures.append(pressure.measure)
    low, many = Measure.LOW_PRIORITY, Measure.MANY
    assert measures == [Measure.ALL] * 3 + [low, low, many, many, Measure.NOTHING, Measure.NOTHING, many]


def test_the_log_tells_of_a_measure_and_its_relief_at_a_bounded_rate(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "vllm_obs.server.pressure")
    now = 100.0
    pressure = Pressure(lambda: now)
    for value in (0.8, 0.9, 0.5, 0.9, 0.5, 0.9, 1.0, 0.5, 0.9, 0.9):
        now += 1.0
        pressure.take({"queue": value})
    assert [record.getMessage().split(" (")[0] for record in caplog.records] == [
        "pressure is 0.80",
        "pressure is 0.90",
        "pressure is 0.50",
        "pressure is 1.00",
        "pressure is 0.50",
    ]
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2 + ["INFO", "WARNING", "INFO"]
    now = 117.0
    pressure.take({"queue": 0.9})
    assert caplog.records[-1].getMessage().startswith("pressure is 0.90 (queue): requests of low priority")


def test_the_worst_source_is_named_and_no_value_is_over_one() -> None:
    pressure = Pressure()
    pressure.take({"queue": 0.2, "memory": 7.0})
    assert (pressure.value, pressure.source) == (1.0, "memory")
    assert SOURCES == PRESSURE_SOURCES


def test_neither_a_full_queue_nor_a_full_cache_nor_a_slow_loop_shuts_everybody_out() -> None:
    for levels, measure in (((1.0, 0.0, 0.0), 2), ((0.0, 1.0, 0.0), 0), ((0.0, 0.0, 60.0), 2)):
        pressure = Pressure()
        for _ in range(10):
            fill, usage, lag = levels
            pressure.look(fill, usage, EASY, lag)
        assert pressure.measure == measure


def test_a_loop_that_was_late_once_is_not_under_pressure() -> None:
    pressure = Pressure()
    for lag in (0.0, 0.0, 9.0, 9.0, 9.0, 9.0):
        pressure.look(0.0, 0.0, EASY, lag)
        assert pressure.value < 0.1


@pytest.mark.parametrize(
    ("least", "used", "expected"),
    [(30, 79, 0.0), (30, 83.6, 0.8), (30, 97, 1.0), (30, 99, 1.0), (90, 90, 0.0), (90, 95.6, 0.8), (99, 99, 0.0)],
)
def test_memory_counts_where_it_is_scarce_by_what_was_free(least: float, used: float, expected: float) -> None:
    room = MemoryRoom(100_000, int(used * 1000))
    assert memory_pressure(room, int(least * 1000)) == pytest.approx(expected, abs=0.01)
    assert memory_pressure(MemoryRoom(0, 0), 0) == 0.0


def test_what_the_engine_takes_when_it_loads_is_no_pressure() -> None:
    pressure = Pressure()
    for used in (10, 40, 94):
        pressure.begin(MemoryRoom(100, used))
    pressure.look(0.0, 0.0, MemoryRoom(100, 94), 0.0)
    assert pressure.value == 0.0
    pressure.look(0.0, 0.0, MemoryRoom(100, 97), 0.0)
    assert (pressure.value, pressure.source) == (1.0, "memory")

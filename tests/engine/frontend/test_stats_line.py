"""The statistics line says what ran in its interval, and says nothing when it is off or idle."""

import logging
from types import SimpleNamespace

import numpy as np
import pytest

from vllm_obs.engine.frontend import stats_line
from vllm_obs.engine.frontend.stats_line import StatsLine
from vllm_obs.engine.messages import EngineCoreOutputs, SchedulerStats


def outputs(num_tokens: int, engine: int = 0, usage: float = 0.25) -> EngineCoreOutputs:
    ids = np.zeros(num_tokens, np.int32)
    stats = SchedulerStats(3, 2, usage, 0)
    return EngineCoreOutputs(0, engine, 0, 1, [], [], ids, [], [], [], [], [], [], [], [], None, stats, 0, 0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(stats_line, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def feed(line: StatsLine, clock: list[float], engines: tuple[int, ...] = (0,)) -> None:
    for second in range(11):
        clock[0] = 100.0 + second
        for engine in engines:
            line.saw(outputs(20, engine, usage=0.25 * (engine + 1)))


def test_one_line_an_interval_with_rate_and_levels(clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        feed(StatsLine(enabled=True), clock)
    assert caplog.messages == ["Engine 0: 22.0 generated tokens/s, running 3, waiting 2, KV cache 25.0 %"]


def test_an_aggregate_line_stands_for_all_engines(clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        feed(StatsLine(enabled=True, aggregate=True), clock, engines=(1, 0))
    assert caplog.messages[0].startswith("All engines: ")
    assert "running 6, waiting 4, KV cache 37.5 %" in caplog.messages[0]


def test_one_of_several_api_servers_tells_its_own_beside_the_engines(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        feed(StatsLine(enabled=True, num_open=lambda: 1), clock)
    assert caplog.messages == [
        "Engine 0: 22.0 generated tokens/s, 1 open here; of all API servers: running 3, waiting 2, KV cache 25.0 %"
    ]


def test_a_quiet_time_starts_a_new_interval(clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    line = StatsLine(enabled=True)
    with caplog.at_level(logging.INFO):
        line.saw(outputs(5))
        clock[0] += 60.0
        line.saw(outputs(5))
    assert caplog.messages == []


def test_switched_off_it_says_nothing(clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        feed(StatsLine(enabled=False), clock)
    assert caplog.messages == []

"""The trend: equal spans of the last minutes, with gaps where nothing was seen."""

from dataclasses import replace

import pytest

from vllm_obs.telemetry import trend as trend_module
from vllm_obs.telemetry.quantiles import Quantiles
from vllm_obs.telemetry.rate_windows import RateWindows
from vllm_obs.telemetry.records import StepAnswered, StepPlanned
from vllm_obs.telemetry.step_history import StepFacts
from vllm_obs.telemetry.trend import NUM_SPANS, Trend

S = 1_000_000_000


def step(number: int, begun_at: int, num_running: int = 1, preempted: tuple[str, ...] = ()) -> StepFacts:
    planned = StepPlanned(
        number, begun_at, begun_at, ["r"], [1], [0], [1], [], [], [], list(preempted), [], [], "", num_running,
        2, 10, 3, 7,
    )  # fmt: skip
    return StepFacts("0", planned, answered=StepAnswered(number, begun_at, begun_at, begun_at, ["r"], [1], 0))


def seen(*steps: StepFacts) -> tuple[Trend, Quantiles]:
    rates, quantiles = RateWindows(), Quantiles()
    trend = Trend(rates, quantiles)
    for each in steps:
        rates.step_closed(each)
        trend.step_closed(each)
    return trend, quantiles


def test_spans_are_over_and_in_order_and_what_was_not_seen_is_a_gap() -> None:
    trend, quantiles = seen(step(1, 1000 * S), step(2, 1001 * S, 4, ("a", "b")), step(3, 1003 * S, 5, ("c",)))
    quantiles.observe("ttft", "0", 0.25, 1001 * S)
    columns = trend.columns(1005 * S + 1, 1)
    assert len(columns["begun_at"]) == NUM_SPANS
    assert columns["begun_at"][-5:] == [second * S for second in range(1000, 1005)]
    assert columns["rates"]["steps_per_second"][-6:] == [None, 1.0, 1.0, 0.0, 1.0, 0.0]
    assert columns["engines"]["0"] == {
        "num_running": [None] * 55 + [1, 4, None, 5, None],
        "num_waiting": [None] * 55 + [2, 2, None, 2, None],
        "num_active_blocks": [None] * 55 + [7, 7, None, 7, None],
        "num_preempted": [None] * 55 + [0, 2, None, 1, None],
    }
    p50 = columns["quantiles"]["ttft"]["p50"]
    assert [place for place, value in enumerate(p50) if value is not None] == [56]
    assert abs(p50[56] - 0.25) < 0.01


def test_five_seconds_are_one_span() -> None:
    trend, _ = seen(*(step(number, (1000 + number) * S) for number in range(10)))
    columns = trend.columns(1010 * S, 5)
    assert columns["rates"]["output_tokens_per_second"][-2:] == [1.0, 1.0]
    assert columns["rates"]["output_tokens_per_second"][-3] is None


def test_span_that_is_over_is_worked_out_once_and_so_many_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trend_module, "MAX_KEPT", 10)
    trend, quantiles = seen(step(1, 1000 * S), step(2, 1100 * S))
    quantiles.observe("itl", "0", 0.5, 1050 * S)
    first = trend.columns(1100 * S, 1)
    assert first == trend.columns(1100 * S, 1)
    assert len(trend._over) == 10


def test_so_many_engines_and_seconds_are_kept_and_the_oldest_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trend_module, "MAX_ENGINES", 3)
    monkeypatch.setattr(trend_module, "MAX_SECONDS", 4)
    trend, _ = seen(*(step(second, second * S) for second in (10, 11, 13, 14, 12, 9)))
    assert sorted(trend._levels["0"]) == [11, 12, 13, 14]
    for label in range(5):
        trend.step_closed(replace(step(1, 20 * S), engine=str(label)))
    assert list(trend._levels) == ["0", "1", "2"]

"""Rates are numbers a second over the whole seconds of a window, and old seconds are forgotten."""

import pytest

from vllm_obs.telemetry import rate_windows
from vllm_obs.telemetry.ledger import SequenceLedger
from vllm_obs.telemetry.rate_windows import NUM_SECONDS, RateWindows, end_of_second
from vllm_obs.telemetry.records import (
    HttpRequestEnded,
    RequestEnded,
    RequestSubmitted,
    StepAnswered,
    StepPlanned,
    WorkerStep,
)
from vllm_obs.telemetry.step_history import StepFacts
from vllm_obs.telemetry.view import Source

S = 1_000_000_000
BEGIN = 1_000 * S
API = Source("APIServer_0", 1, 1, "")


def ledger(
    num_prompt: int = 10, num_cached: int = 4, finish_reason: str = "stop", ended_at: int = 0
) -> SequenceLedger:
    text, zeros = ("r", 0, "h", "", 0, 1, 1, "chat", False, "m", ""), (0,) * 5
    submitted = RequestSubmitted(*text, *zeros, num_prompt, 8, 0, 0.0, 1.0, 0)
    found = SequenceLedger(submitted, num_cached_tokens=num_cached)
    if ended_at:
        found.ended = RequestEnded("r", 0, finish_reason, "", num_prompt, 1, num_cached, 0, 0, 0, ended_at)
    return found


def step(number: int, begun_at: int, num_tokens: int) -> StepFacts:
    """A step of 100 ms: 10 schedule, 60 execute, 20 sample, 10 update."""
    ms = S // 1000
    planned = StepPlanned(
        number,
        begun_at,
        begun_at + 10 * ms,
        ["r"],
        [num_tokens],
        [0],
        [1],
        [],
        [],
        [],
        [],
        [],
        [],
        "",
        1,
        0,
        0,
        0,
        0,
    )
    answered = StepAnswered(number, begun_at + 70 * ms, begun_at + 90 * ms, begun_at + 100 * ms, ["r"], [1], 0)
    return StepFacts("0", planned, answered=answered)


def test_a_window_counts_its_whole_seconds() -> None:
    rates = RateWindows()
    for second in range(20):
        if second == 15:
            rates.first_token(ledger(), BEGIN + second * S + 1)
        rates.step_closed(step(second, BEGIN + second * S, 7))
    rates.sequence_closed(ledger(ended_at=BEGIN + 19 * S))
    rates.sequence_closed(ledger(finish_reason="error", ended_at=BEGIN + 19 * S))
    assert rates.rates(BEGIN + 20 * S)["10s"] == {
        "steps_per_second": 1.0,
        "prompt_tokens_per_second": 0.6,
        "output_tokens_per_second": 1.0,
        "requests_per_second": 0.2,
        "failed_requests_per_second": 0.1,
        "http_requests_per_second": 0.0,
    }


def test_a_young_run_is_not_made_to_look_slow() -> None:
    rates = RateWindows()
    for second in range(4):
        rates.step_closed(step(second, BEGIN + second * S, 1))
    assert [found["output_tokens_per_second"] for found in rates.rates(BEGIN + 4 * S).values()] == [1.0, 1.0, 1.0]


def test_the_loops_time_is_shared_out() -> None:
    rates = RateWindows()
    for second in range(10):
        rates.step_closed(step(second, BEGIN + second * S, 7))
    share = rates.loop_shares(BEGIN + 10 * S, "0")["10s"]
    assert share == pytest.approx(
        {"schedule": 0.01, "execute": 0.06, "sample": 0.02, "update": 0.01, "busy": 0.1, "idle": 0.9}
    )
    assert rates.loop_shares(BEGIN + 10 * S, "1")["10s"]["idle"] == 1.0


def test_sampling_inside_of_execute_is_told_by_the_slowest_rank() -> None:
    """As an executor in the core's own process does: for the core, execute and sample end at the same moment."""
    rates, ms = RateWindows(), S // 1000
    for second in range(10):
        facts = step(second, begun_at := BEGIN + second * S, 7)
        assert facts.answered is not None
        facts.answered = facts.answered._replace(executed_at=begun_at + 90 * ms)
        for rank, sampled_ms in ((0, 70), (1, 88)):
            received_at, sample_begun_at = begun_at + 11 * ms, begun_at + (sampled_ms - 18) * ms
            moments = (received_at, received_at, sample_begun_at, sample_begun_at, begun_at + sampled_ms * ms)
            facts.workers.append(WorkerStep(second, rank, *moments, 7, 1))
        rates.step_closed(facts)
    share = rates.loop_shares(BEGIN + 10 * S, "0")["10s"]
    assert share == pytest.approx(
        {"schedule": 0.01, "execute": 0.062, "sample": 0.018, "update": 0.01, "busy": 0.1, "idle": 0.9}
    )


def test_probes_are_no_http_requests() -> None:
    rates = RateWindows()
    for handler in ("/readyz", "/metrics", "/v1/chat/completions"):
        moments = (BEGIN, BEGIN, BEGIN + 1)
        rates.record(API, HttpRequestEnded("h", 0, "", handler, "GET", 200, "", "", *moments, 1, 1))
    assert rates.rates(BEGIN + S)["10s"]["http_requests_per_second"] == 1.0


def ended(http_id: str, status: int, reason: str, handler: str = "/v1/chat/completions") -> HttpRequestEnded:
    return HttpRequestEnded(http_id, 0, "", handler, "POST", status, reason, "", BEGIN, BEGIN, BEGIN + 1, 1, 1)


def test_what_is_refused_has_failed_and_is_counted_by_its_reason() -> None:
    rates = RateWindows()
    for record in (
        ended("a", 503, "stalled"),
        ended("b", 503, "stalled"),
        ended("c", 429, "overloaded"),
        ended("d", 404, "model_not_found"),
        ended("e", 400, "a word of its own"),
        ended("f", 499, ""),
        ended("g", 200, ""),
        ended("h", 503, "stalled", "/health"),
    ):
        rates.record(API, record)
    assert rates.refused(BEGIN + S)["1m"] == {"stalled": 2, "overloaded": 1, "model_not_found": 1, "other": 1}
    assert rates.rates(BEGIN + S)["10s"]["failed_requests_per_second"] == 3.0
    assert rates.refused(BEGIN + 400 * S)["5m"] == {}


def test_a_request_with_sequences_fails_by_them_and_is_not_refused() -> None:
    rates, resumed = RateWindows(), ledger()
    rates.record(API, resumed.submitted._replace(http_id="own"))
    rates.resumed(API, resumed)
    for http_id in ("own", "h"):
        rates.record(API, ended(http_id, 500, "engine_dead"))
    rates.sequence_closed(ledger(finish_reason="error", ended_at=BEGIN))
    assert rates.refused(BEGIN + S)["1m"] == {}
    assert rates.rates(BEGIN + S)["10s"]["failed_requests_per_second"] == 1.0


def test_admitted_requests_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_windows, "MAX_ADMITTED", 2)
    rates = RateWindows()
    for number in range(5):
        rates.record(API, ledger().submitted._replace(http_id=f"h-{number}"))
    rates.record(API, ledger().submitted._replace(http_id=""))
    assert list(rates._admitted) == ["h-3", "h-4"]


def test_where_time_stands_still_the_last_second_counts() -> None:
    rates = RateWindows()
    rates.step_closed(step(0, BEGIN, 7))
    last = BEGIN + S // 10
    assert rates.rates(last)["10s"]["steps_per_second"] == 0.0
    assert rates.rates(end_of_second(last))["10s"]["steps_per_second"] == 1.0
    assert [end_of_second(moment) for moment in (0, S - 1, S)] == [S, S, 2 * S]


def test_an_idle_run_has_rates_of_zero() -> None:
    rates = RateWindows()
    rates.step_closed(step(0, BEGIN, 1))
    later = rates.rates(BEGIN + 400 * S)
    assert {number for found in later.values() for number in found.values()} == {0.0}


def test_what_is_older_than_every_window_is_forgotten() -> None:
    rates = RateWindows()
    for second in range(3 * NUM_SECONDS):
        rates.step_closed(step(second, BEGIN + second * S, 1))
    rates.step_closed(step(0, BEGIN, 1))
    assert len(rates._seconds) == NUM_SECONDS

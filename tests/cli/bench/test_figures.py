"""The arithmetic of a measurement, on moments chosen by hand."""

import math
import statistics

import pytest

from vllm_obs.cli.bench.figures import deviation, latencies, loaded_rate, mean, percentile, throughput
from vllm_obs.cli.bench.load import Outcome
from vllm_obs.cli.bench.options import BenchOptions
from vllm_obs.cli.bench.report import Report

MS = 1_000_000


def outcome(due: int, sent: int, ended: int, tokens: tuple[int, ...], num_tokens: int, error: str = "") -> Outcome:
    return Outcome(due * MS, sent * MS, ended * MS, tuple(t * MS for t in tokens), 10, num_tokens, error)


# The second waited 100 ms before it was sent, and its five tokens came in three chunks.
OUTCOMES = [
    outcome(0, 0, 150, (50, 90, 150), 3),
    outcome(100, 200, 460, (260, 360, 460), 5),
    outcome(100, 100, 500, (), 0, error="HTTP 500: no"),
]


def test_latencies_count_from_the_moment_due() -> None:
    found = latencies(OUTCOMES)
    assert found.ttft == [50.0, 160.0]
    assert found.tpot == [50.0, 50.0]
    assert found.itl == [40.0, 60.0, 100.0, 100.0]
    assert found.e2el == [150.0, 360.0]


def test_throughput_counts_finished_requests() -> None:
    found = throughput(OUTCOMES)
    assert (found.num_completed, found.num_failed) == (2, 1)
    assert (found.num_prompt_tokens, found.num_output_tokens) == (20, 8)
    assert found.duration_seconds == 0.5
    assert found.per_second(found.num_output_tokens) == 16.0
    assert found.peak_concurrency == 2


@pytest.mark.parametrize(
    ("objectives", "num_good"),
    [((), 2), ((("ttft", 50.0),), 1), ((("ttft", 160.0), ("e2el", 359.0)), 1), ((("tpot", 49.9),), 0)],
)
def test_goodput_keeps_to_every_objective(objectives: tuple[tuple[str, float], ...], num_good: int) -> None:
    assert throughput(OUTCOMES, objectives).num_good == num_good


def test_the_rate_while_all_run_counts_a_chunk_as_its_part_of_the_tokens() -> None:
    """Of the first 300 ms: all three tokens of the first, and one of three chunks of the second's five."""
    assert loaded_rate(OUTCOMES, 0.3) == pytest.approx((3 + 5 / 3) / 0.3)
    assert loaded_rate([], 1.0) == 0.0


def test_one_token_has_no_time_per_output_token() -> None:
    found = latencies([outcome(0, 0, 5, (5,), 1)])
    assert (found.ttft, found.tpot, found.itl) == ([5.0], [], [])


def test_nothing_measured_divides_by_nothing() -> None:
    assert throughput([]).per_second(3) == 0.0
    assert (mean([]), deviation([]), percentile([], 99)) == (0.0, 0.0, 0.0)
    assert "Successful requests:                     0" in Report(BenchOptions(), "m", []).table()


def test_percentiles_interpolate() -> None:
    values = [40.0, 10.0, 30.0, 20.0]
    assert [percentile(values, p) for p in (0, 50, 75, 100)] == [10.0, 25.0, 32.5, 40.0]
    assert math.isclose(deviation(values), statistics.pstdev(values))


def test_the_table() -> None:
    options = BenchOptions(max_concurrency=2, metric_percentiles=(90.0, 99.0), percentile_metrics=("ttft", "itl"))
    assert Report(options, "m", OUTCOMES).table().splitlines() == [
        "============ Serving Benchmark Result ============",
        "Successful requests:                     2         ",
        "Failed requests:                         1         ",
        "Maximum request concurrency:             2         ",
        "Benchmark duration (s):                  0.50      ",
        "Total input tokens:                      20        ",
        "Total generated tokens:                  8         ",
        "Request throughput (req/s):              4.00      ",
        "Output token throughput (tok/s):         16.00     ",
        "Peak concurrent requests:                2         ",
        "Total token throughput (tok/s):          56.00     ",
        "---------------Time to First Token----------------",
        "Mean TTFT (ms):                          105.00    ",
        "Median TTFT (ms):                        105.00    ",
        "P90 TTFT (ms):                           149.00    ",
        "P99 TTFT (ms):                           158.90    ",
        "---------------Inter-token Latency----------------",
        "Mean ITL (ms):                           75.00     ",
        "Median ITL (ms):                         80.00     ",
        "P90 ITL (ms):                            100.00    ",
        "P99 ITL (ms):                            100.00    ",
        "==================================================",
    ]


def test_the_document() -> None:
    options = BenchOptions(max_concurrency=2, save_detailed=True, goodput=(("ttft", 50.0),))
    document = Report(options, "m", OUTCOMES).as_json("now")
    expected = {
        "model_id": "m",
        "completed": 2,
        "failed": 1,
        "request_rate": "inf",
        "request_goodput": 2.0,
        "output_throughput": 16.0,
        "total_token_throughput": 56.0,
        "median_ttft_ms": 105.0,
        "p99_tpot_ms": 50.0,
        "std_e2el_ms": 105.0,
        "output_lens": [3, 5, 0],
        "errors": ["", "", "HTTP 500: no"],
    }
    assert {name: document[name] for name in expected} == expected

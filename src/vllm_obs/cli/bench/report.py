"""A measurement as a table for people and as JSON for machines, under the names vLLM's benchmark uses."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vllm_obs.cli.bench.figures import (
    Latencies,
    Throughput,
    deviation,
    latencies,
    mean,
    percentile,
    request_latencies,
    throughput,
)
from vllm_obs.cli.bench.load import Outcome
from vllm_obs.cli.bench.options import BenchOptions

WIDTH = 50
TITLES = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}


@dataclass(frozen=True)
class Report:
    """One measurement with its options."""

    options: BenchOptions
    model: str
    outcomes: Sequence[Outcome]

    @property
    def throughput(self) -> Throughput:
        """Its counts."""
        return throughput(self.outcomes, self.options.goodput)

    @property
    def latencies(self) -> Latencies:
        """Its distributions."""
        return latencies(self.outcomes)

    def table(self) -> str:
        """What is printed at the end."""
        lines = [" Serving Benchmark Result ".center(WIDTH, "=")]
        lines += [_row(name, value) for name, value in self._counts()]
        distributions = self.latencies
        for metric in self.options.percentile_metrics:
            lines.append(TITLES[metric].center(WIDTH, "-"))
            lines += [_row(name, value) for name, value in self._levels(metric, getattr(distributions, metric))]
        return "\n".join([*lines, "=" * WIDTH])

    def as_json(self, date: str) -> dict[str, Any]:
        """Everything for a file."""
        options, counts = self.options, self.throughput
        document: dict[str, Any] = {
            "date": date,
            "label": options.label,
            "model_id": self.model,
            "num_prompts": len(self.outcomes),
            "request_rate": options.request_rate if options.is_open_loop else "inf",
            "burstiness": options.burstiness,
            "max_concurrency": options.max_concurrency,
            "random_input_len": options.random_input_len,
            "random_output_len": options.random_output_len,
            "random_prefix_len": options.random_prefix_len,
            "seed": options.seed,
            "duration": counts.duration_seconds,
            "completed": counts.num_completed,
            "failed": counts.num_failed,
            "total_input_tokens": counts.num_prompt_tokens,
            "total_output_tokens": counts.num_output_tokens,
            "request_throughput": counts.per_second(counts.num_completed),
            "request_goodput": counts.per_second(counts.num_good) if options.goodput else None,
            "output_throughput": counts.per_second(counts.num_output_tokens),
            "total_token_throughput": counts.per_second(counts.num_prompt_tokens + counts.num_output_tokens),
            "max_concurrent_requests": counts.peak_concurrency,
        }
        distributions = self.latencies
        for metric in options.percentile_metrics:
            document |= self._level_fields(metric, getattr(distributions, metric))
        return document | (self._details() if options.save_detailed else {})

    def failures(self) -> list[tuple[str, int]]:
        """(cause, how often), the most frequent first."""
        causes = [outcome.error for outcome in self.outcomes if outcome.error]
        return sorted(((cause, causes.count(cause)) for cause in set(causes)), key=lambda row: -row[1])

    def _counts(self) -> list[tuple[str, int | float]]:
        options, counts = self.options, self.throughput
        rows: list[tuple[str, int | float]] = [
            ("Successful requests:", counts.num_completed),
            ("Failed requests:", counts.num_failed),
        ]
        if options.max_concurrency is not None:
            rows.append(("Maximum request concurrency:", options.max_concurrency))
        if options.is_open_loop:
            rows.append(("Request rate configured (RPS):", options.request_rate))
        rows += [
            ("Benchmark duration (s):", counts.duration_seconds),
            ("Total input tokens:", counts.num_prompt_tokens),
            ("Total generated tokens:", counts.num_output_tokens),
            ("Request throughput (req/s):", counts.per_second(counts.num_completed)),
        ]
        if options.goodput:
            rows.append(("Request goodput (req/s):", counts.per_second(counts.num_good)))
        return [
            *rows,
            ("Output token throughput (tok/s):", counts.per_second(counts.num_output_tokens)),
            ("Peak concurrent requests:", counts.peak_concurrency),
            (
                "Total token throughput (tok/s):",
                counts.per_second(counts.num_prompt_tokens + counts.num_output_tokens),
            ),
        ]

    def _levels(self, metric: str, values: list[float]) -> list[tuple[str, float]]:
        name = metric.upper()
        rows = [(f"Mean {name} (ms):", mean(values)), (f"Median {name} (ms):", percentile(values, 50))]
        return rows + [(f"P{p:g} {name} (ms):", percentile(values, p)) for p in self.options.metric_percentiles]

    def _level_fields(self, metric: str, values: list[float]) -> dict[str, float]:
        fields = {
            f"mean_{metric}_ms": mean(values),
            f"median_{metric}_ms": percentile(values, 50),
            f"std_{metric}_ms": deviation(values),
        }
        return fields | {f"p{p:g}_{metric}_ms": percentile(values, p) for p in self.options.metric_percentiles}

    def _details(self) -> dict[str, Any]:
        return {
            "input_lens": [outcome.num_prompt_tokens for outcome in self.outcomes],
            "output_lens": [outcome.num_output_tokens for outcome in self.outcomes],
            "latencies_ms": [{} if outcome.error else request_latencies(outcome) for outcome in self.outcomes],
            "errors": [outcome.error for outcome in self.outcomes],
        }


def _row(name: str, value: int | float) -> str:
    return f"{name:<40} {value:<10}" if isinstance(value, int) else f"{name:<40} {value:<10.2f}"

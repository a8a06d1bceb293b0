"""The overview's figures: rates in and out, and latencies, each with its last five minutes."""

from typing import Any, NamedTuple

import streamlit as st

from vllm_obs.dashboard.figures import NOTHING, known, number, seconds
from vllm_obs.dashboard.source import current

TREND_SECONDS = 5


class Card(NamedTuple):
    """`name` is the Observer's."""

    name: str
    title: str
    help: str


RATES = (
    Card("output_tokens_per_second", "Tokens out /s", "Tokens sampled and used, over all engines."),
    Card("prompt_tokens_per_second", "Prompt tokens in /s", "Prompt tokens computed, without cached ones."),
    Card("requests_per_second", "Requests ended /s", "Sequences that ended, however they ended."),
    Card("failed_requests_per_second", "Errors /s", "Sequences that ended with an error, and requests refused "
             "with 429 or 5xx."),
    Card("steps_per_second", "Steps /s", "Scheduler steps that answered."),
)  # fmt: skip
LATENCIES = (
    Card("ttft", "Time to first token", "From the request's first byte to its first token."),
    Card("itl", "Between tokens", "From one token to the next."),
    Card("e2e", "End to end", "From the request's first byte to its end."),
)


def rate_panel() -> None:
    """Rates of the last 10 seconds, over the trend of five minutes."""
    state, trend = current().get("/inspect/state"), current().get("/inspect/trend", every=TREND_SECONDS)
    rates = state.content["throughput"]["10s"] if state.is_there else {}
    rows = trend.content["rates"] if trend.is_there else {}
    for column, card in zip(st.columns(len(RATES)), RATES, strict=True):
        with column:
            st.metric(
                card.title,
                number(rates.get(card.name)),
                border=True,
                help=f"{card.help} The figure is of the last 10 s, the line of the last 5 min.",
                chart_data=known(rows.get(card.name, [])),
                height=128,
            )


def latency_panel(window: str) -> None:
    """p95 large, p50 and p99 beside it, over the window; the line is the p95 of the last five minutes."""
    quantiles = current().get("/inspect/quantiles", window=window)
    trend = current().get("/inspect/trend", every=TREND_SECONDS)
    measures = quantiles.content["quantiles"] if quantiles.is_there else {}
    rows = trend.content["quantiles"] if trend.is_there else {}
    for column, card in zip(st.columns(len(LATENCIES)), LATENCIES, strict=True):
        summary = measures.get(card.name, {"num_observed": 0})
        with column:
            st.metric(
                f"{card.title}, p95",
                quantile(summary, "p95"),
                border=True,
                help=f"{card.help} Quantiles of merged counts, exact to 1 %, never averages of quantiles.",
                chart_data=known(rows.get(card.name, {}).get("p95", [])),
                height=152,
                delta=f"p50 {quantile(summary, 'p50')} · p99 {quantile(summary, 'p99')} · "
                f"{number(summary['num_observed'])} seen",
                delta_color="off",
                delta_arrow="off",
            )


def quantile(summary: dict[str, Any], name: str) -> str:
    """One quantile; nothing where nothing was observed, which is not 0."""
    return seconds(summary[name]) if summary["num_observed"] else NOTHING

"""FLEET: servers of vLLM and of vllm-obs side by side, from the names of metrics that both have."""

from vllm_obs.grafana.board import Board, Row
from vllm_obs.grafana.colours import ENDINGS, LOAD, STATUSES, TOKENS
from vllm_obs.grafana.panel import Panel, Query, Says
from vllm_obs.grafana.promql import (
    PERCENTILE,
    engine,
    mean,
    quantile,
    rate,
    server,
    total,
)
from vllm_obs.grafana.row_fleet_use import FLEET_USE
from vllm_obs.grafana.row_fleet_verdict import FLEET_VERDICT

_ENDED = engine("vllm:request_success_total")
_INSTANCE = "{{instance}}"
_SUM_OF_ALL = "the chosen percentile of all observations: the buckets of all servers are added up first."


_RED = Row(
    "Rate, errors, duration",
    (
        Panel(
            "Requests ended",
            Says(
                "How many requests a second end, and how?",
                "ended sequences a second by finish reason.",
                "stop and length.",
                "Fleet: HTTP requests by status",
            ),
            (Query(total(rate(_ENDED), "finished_reason"), "{{finished_reason}}"),),
            unit="reqps",
            colours=ENDINGS,
            page="requests",
            is_stacked=True,
        ),
        Panel(
            "HTTP requests by status",
            Says(
                "What do clients get?",
                "HTTP requests a second by status.",
                "2xx.",
                "Fleet: Time to first token",
            ),
            (Query(total(rate(server("http_requests_total")), "status"), "{{status}}"),),
            unit="reqps",
            colours=STATUSES,
            page="requests",
            idle="no HTTP request",
            is_stacked=True,
        ),
        Panel(
            "Tokens",
            Says(
                "How much work is done?",
                "prompt and generated tokens a second, over all engines.",
                "steady under a steady load.",
                "Fleet: Tokens by server",
            ),
            (
                Query(total(rate(engine("vllm:prompt_tokens_total"))), "prompt"),
                Query(total(rate(engine("vllm:generation_tokens_total"))), "generated"),
            ),
            unit="suffix: tok/s",
            colours=TOKENS,
        ),
        Panel(
            "Time to first token",
            Says(
                "How long until users see something, by server?",
                "the chosen percentile by server, from the merged buckets of its engines.",
                "alike on all servers: one that is slower has more load, or something is wrong with it.",
                "Fleet: Queue time",
            ),
            (Query(quantile(PERCENTILE, engine("vllm:time_to_first_token_seconds"), "instance"), _INSTANCE),),
            unit="s",
            page="requests",
            idle="no request ended",
        ),
        Panel(
            "Between tokens",
            Says(
                "How fluently do tokens come, by server?",
                "the chosen percentile by server, from the merged buckets of its engines.",
                "below 0.1 s.",
                "Fleet: Tokens of a step",
            ),
            (Query(quantile(PERCENTILE, engine("vllm:inter_token_latency_seconds"), "instance"), _INSTANCE),),
            unit="s",
            page="requests",
            idle="no request ended",
        ),
        Panel(
            "End to end",
            Says(
                "How long do whole requests take, by server?",
                "the chosen percentile by server, from the merged buckets of its engines.",
                "as long as their tokens take.",
                "Fleet: Tokens per request",
            ),
            (Query(quantile(PERCENTILE, engine("vllm:e2e_request_latency_seconds"), "instance"), _INSTANCE),),
            unit="s",
            page="requests",
            idle="no request ended",
        ),
        Panel(
            "The whole fleet's latency",
            Says(
                "What do users of the fleet get?",
                _SUM_OF_ALL,
                "below what was promised.",
                "Fleet: Parts of latency",
            ),
            (
                Query(quantile(PERCENTILE, engine("vllm:time_to_first_token_seconds")), "first token"),
                Query(quantile(PERCENTILE, engine("vllm:request_time_per_output_token_seconds")), "per token"),
                Query(quantile(PERCENTILE, engine("vllm:e2e_request_latency_seconds")), "end to end"),
            ),
            unit="s",
            page="requests",
            idle="no request ended",
        ),
        Panel(
            "Parts of latency",
            Says(
                "What is latency made of?",
                "mean queue, prefill and decode time of ended sequences, stacked.",
                "decode is most of it; queue is nothing.",
                "Fleet: Queue time",
            ),
            (
                Query(mean(engine("vllm:request_queue_time_seconds")), "queue"),
                Query(mean(engine("vllm:request_prefill_time_seconds")), "prefill"),
                Query(mean(engine("vllm:request_decode_time_seconds")), "decode"),
            ),
            unit="s",
            colours={"queue": LOAD["waiting"], "prefill": TOKENS["prompt"], "decode": TOKENS["generated"]},
            page="requests",
            idle="no request ended",
            is_stacked=True,
        ),
        Panel(
            "Queue time",
            Says(
                "On which server do requests queue?",
                "the chosen percentile by server.",
                "close to nothing, and alike.",
                "Fleet: Running and waiting",
            ),
            (Query(quantile(PERCENTILE, engine("vllm:request_queue_time_seconds"), "instance"), _INSTANCE),),
            unit="s",
            page="scheduler",
            idle="no request ended",
        ),
    ),
)


FLEET = Board(
    "vllm-obs-fleet",
    "Fleet",
    "Servers of vLLM and of vllm-obs side by side: it asks only for metrics that both have.",
    (FLEET_VERDICT, _RED, FLEET_USE),
    is_fleets=True,
)

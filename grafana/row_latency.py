"""LATENCY: how long requests take, as vLLM measures it."""

from vllm_obs.grafana.board import Row
from vllm_obs.grafana.panel import Kind, Panel, Query, Says
from vllm_obs.grafana.promql import (
    PERCENTILE,
    buckets,
    engine,
    mean,
    quantile,
)


def heat(title: str, metric: str, says: Says, unit: str = "s") -> Panel:
    """A panel of how many ended requests there are a second in each bucket of a histogram."""
    query = Query(buckets(engine(metric)), "{{le}}", has_exemplars=unit == "s")
    return Panel(title, says, (query,), Kind.HEAT, unit=unit, page="requests", idle="no request ended")


def _percentiles(title: str, metric: str, says: Says) -> Panel:
    queries = (
        Query(quantile(PERCENTILE, engine(metric)), "${percentile:text}", has_exemplars=True),
        Query(mean(engine(metric)), "mean"),
    )
    return Panel(title, says, queries, unit="s", page="requests", idle="no request ended")


_BUCKETS = "requests a second in each bucket of time, over all engines. Dots are traced requests."


_TWO = "the chosen percentile over merged buckets, and the mean."


LATENCY = Row(
    "Latency",
    (
        heat(
            "Time to first token",
            "vllm:time_to_first_token_seconds",
            Says(
                "How long until the first token?",
                _BUCKETS,
                "one narrow band. A second band above it is those that queued.",
                "Requests: Queue",
            ),
        ),
        heat(
            "End to end",
            "vllm:e2e_request_latency_seconds",
            Says(
                "How long do whole requests take?",
                _BUCKETS,
                "as wide as the lengths of answers. A click on a dot leads to its trace.",
                "Requests: Answer lengths",
            ),
        ),
        _percentiles(
            "Time per output token",
            "vllm:request_time_per_output_token_seconds",
            Says(
                "How fast do answers come?",
                _TWO,
                "below 0.1 s; 0 for answers of one token.",
                "Engine: Where the engine's time goes",
            ),
        ),
        _percentiles(
            "Queue",
            "vllm:request_queue_time_seconds",
            Says(
                "How long until they are admitted?",
                _TWO,
                "close to nothing. Its lowest bucket ends at 0.3 s: below that, the stages are more exact.",
                "Engine: Waiting sequences",
            ),
        ),
        _percentiles(
            "Prefill",
            "vllm:request_prefill_time_seconds",
            Says(
                "How long do prompts take?",
                _TWO,
                "grows with prompts. Its lowest bucket ends at 0.3 s: below that, the stages are more exact.",
                "KV cache: Prefix hits",
            ),
        ),
        _percentiles(
            "Decode",
            "vllm:request_decode_time_seconds",
            Says(
                "How long do answers take once begun?",
                _TWO,
                "the number of tokens times the time of a step.",
                "Engine: Time of each phase",
            ),
        ),
        _percentiles(
            "In the engine",
            "vllm:request_inference_time_seconds",
            Says(
                "How long are sequences in the batch?",
                _TWO,
                "prefill and decode together. What latency is above it is queue, HTTP and text.",
                "Requests: Time in stages",
            ),
        ),
        Panel(
            "Between tokens",
            Says(
                "How regular do tokens come?",
                "tokens a second by the gap before them.",
                "one narrow band at the time of a step. A second one is preemptions or long prefills.",
                "Engine: Forward time",
            ),
            (Query(buckets(engine("vllm:inter_token_latency_seconds")), "{{le}}", has_exemplars=True),),
            Kind.HEAT,
            unit="s",
            page="requests",
            width=16,
        ),
    ),
)

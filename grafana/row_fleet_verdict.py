"""FLEET_VERDICT: what can be said at once of servers of vLLM and of vllm-obs."""

from vllm_obs.grafana.board import Row
from vllm_obs.grafana.panel import Kind, Levels, Panel, Query, Says
from vllm_obs.grafana.promql import (
    engine,
    increase,
    lowest,
    server,
    share,
    total,
)

_WAITING = engine("vllm:num_requests_waiting")
_USAGE = engine("vllm:kv_cache_usage_perc")
_ENDED = engine("vllm:request_success_total")

FLEET_VERDICT = Row(
    "Verdict",
    (
        Panel(
            "Servers answer",
            Says(
                "Does every chosen server answer its scrapes?",
                "the smallest `up` of them.",
                "yes.",
                "Fleet: Restarts in this time",
            ),
            (Query(lowest(server("up")), "up"),),
            Kind.TILES,
            levels=Levels(1, 1, is_low_bad=True),
            words={0: "no", 1: "yes"},
            page="processes",
            width=4,
            height=5,
        ),
        Panel(
            "Short of KV cache",
            Says(
                "On how many engines do requests wait while the KV cache is full?",
                "engines with waiting requests and more than 95 % of their blocks held.",
                "0. Otherwise fewer or shorter requests, or more memory, would help.",
                "Fleet: KV cache in use",
            ),
            (
                Query(
                    f"sum(({_WAITING} > bool 0) * ({_USAGE} > bool 0.95))",
                    "engines",
                ),
            ),
            Kind.TILES,
            levels=Levels(1, 2),
            page="kv",
            width=5,
            height=5,
        ),
        Panel(
            "Waiting with room left",
            Says(
                "On how many engines do requests wait though blocks are free?",
                "engines with waiting requests and at most 95 % of their blocks held.",
                "0. Otherwise max_num_seqs or the token budget is the limit: these may be raised.",
                "Fleet: Running and waiting",
            ),
            (
                Query(
                    f"sum(({_WAITING} > bool 0) * ({_USAGE} <= bool 0.95))",
                    "engines",
                ),
            ),
            Kind.TILES,
            levels=Levels(1, 4),
            page="scheduler",
            width=5,
            height=5,
        ),
        Panel(
            "Failed in this time",
            Says(
                "What share of requests failed?",
                "sequences that ended with an error over all that ended, in the time that is shown.",
                "0.",
                "Fleet: Requests ended",
            ),
            (
                Query(
                    share(
                        total(
                            increase(engine("vllm:request_success_total", 'finished_reason="error"'), "$__range")
                        ),
                        total(increase(_ENDED, "$__range")),
                    ),
                    "failed",
                    is_instant=True,
                ),
            ),
            Kind.TILES,
            unit="percentunit",
            levels=Levels(0.001, 0.01),
            page="requests",
            idle="no request ended",
            width=5,
            height=5,
        ),
        Panel(
            "Restarts in this time",
            Says(
                "Was a server started again?",
                "changes of the servers' start times in the time that is shown.",
                "0, but for deploys.",
                "Fleet: Since when servers run",
            ),
            (
                Query(
                    f"sum(changes({server('process_start_time_seconds')}[$__range]))",
                    "restarts",
                    is_instant=True,
                ),
            ),
            Kind.TILES,
            unit="none",
            levels=Levels(1, 2),
            page="processes",
            width=5,
            height=5,
        ),
    ),
)

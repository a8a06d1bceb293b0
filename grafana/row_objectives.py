"""OBJECTIVES: whether requests keep to what --slo promises, and how fast the error budget is spent."""

from vllm_obs.grafana.board import Row
from vllm_obs.grafana.panel import Kind, Levels, Panel, Query, Says
from vllm_obs.grafana.promql import (
    increase,
    rate,
    server,
    share,
    total,
)

_ATTAINED = "vllm_obs_slo_attained_total"


_MISSED = "vllm_obs_slo_missed_total"


def _kept(window: str) -> str:
    """The share of ended sequences that kept to all objectives, over all servers."""
    attained = total(increase(server(_ATTAINED), window))
    return share(attained, f"({attained} + {total(increase(server(_MISSED), window))})")


def _missed_share() -> str:
    missed = total(rate(server(_MISSED)))
    return share(missed, f"({missed} + {total(rate(server(_ATTAINED)))})")


OBJECTIVES = Row(
    "Objectives (what --slo promises)",
    (
        Panel(
            "Kept in this time",
            Says(
                "What share of requests kept to all objectives?",
                "attained / (attained + missed), counted over the time that is shown and all servers.",
                "above the promised share. Where nothing is shown the server was started without --slo.",
                "Overview: Budget burn",
            ),
            (Query(_kept("$__range"), "kept", is_instant=True),),
            Kind.TILES,
            unit="percentunit",
            levels=Levels(0.99, 0.95, is_low_bad=True),
            idle="no request ended, or no --slo",
            page="requests",
            width=4,
        ),
        Panel(
            "Promises",
            Says(
                "What was promised?",
                "the targets of --slo in seconds; the strictest where servers differ.",
                "the targets that users were told.",
                "Overview: Missed by objective",
            ),
            (Query(f"min by (objective) ({server('vllm_obs_slo_target_seconds')})", "{{objective}}", True),),
            Kind.TILES,
            unit="s",
            idle="no --slo",
            width=4,
        ),
        Panel(
            "Budget burn",
            Says(
                "How fast is the error budget spent?",
                "the share that missed, over the share that may: 1 - $promised.",
                "below 1. At 1 the budget lasts exactly; above 14 a month's is gone in two days.",
                "Overview: Missed by objective",
            ),
            (Query(f"({_missed_share()}) / (1 - $promised)", "burn"),),
            levels=Levels(1, 14),
            idle="no request ended, or no --slo",
            page="requests",
        ),
        Panel(
            "Missed by objective",
            Says(
                "Which promise is broken?",
                "sequences a second that missed, by the objective missed by most; error is one that failed.",
                "nothing. ttft points to waiting and prefill, tpot to steps, error to the errors below.",
                "Requests: Time in stages",
            ),
            (Query(total(rate(server(_MISSED)), "objective"), "{{objective}}"),),
            unit="reqps",
            idle="no --slo",
            page="requests",
        ),
        Panel(
            "Goodput",
            Says(
                "How many requests a second are of use to their users?",
                "sequences a second that kept to all objectives, beside all that ended.",
                "both lines on top of each other.",
                "Overview: Requests ended",
            ),
            (
                Query(total(rate(server(_ATTAINED))), "kept to all objectives"),
                Query(f"{total(rate(server(_ATTAINED)))} + {total(rate(server(_MISSED)))}", "all that ended"),
            ),
            unit="reqps",
            idle="no --slo",
            page="requests",
            width=12,
        ),
        Panel(
            "The servers' own windows",
            Says(
                "What do the servers themselves say of the last minute and five?",
                "the lowest attainment of a server in a window; none where no request ended in it.",
                "above the promised share, and close to the first tile.",
                "Overview: Budget burn",
            ),
            (Query(f"min by (window) ({server('vllm_obs_slo_attainment_ratio')})", "kept, {{window}}"),),
            unit="percentunit",
            levels=Levels(0.99, 0.95, is_low_bad=True),
            idle="no request ended, or no --slo",
            width=6,
        ),
        Panel(
            "The servers' own goodput",
            Says(
                "How many kept requests a second do the servers count?",
                "the sum of the servers' goodput, by window.",
                "as much as users ask for.",
                "Overview: Goodput",
            ),
            (Query(total(server("vllm_obs_goodput_requests_per_second"), "window"), "{{window}}"),),
            unit="reqps",
            idle="no --slo",
            width=6,
        ),
    ),
)

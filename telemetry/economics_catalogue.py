"""ECONOMICS_METRICS: what accounts spend, and whether requests keep to the objectives."""

from vllm_obs.telemetry.catalogue_row import Metric

TOKEN_KINDS = ("prompt", "cached", "generation", "recomputed")
FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")

_ACCOUNTS = (
    Metric(
        "vllm_obs_account_step_seconds_total",
        "counter",
        "The requests' shares of their steps' time, by the account of their API key; they sum to all steps.",
        ("account",),
    ),
    Metric(
        "vllm_obs_account_block_seconds_total",
        "counter",
        "KV blocks times the seconds that requests held them; shared blocks are split among their holders.",
        ("account",),
    ),
    Metric(
        "vllm_obs_account_tokens_total",
        "counter",
        "Tokens of ended requests by account; cached are prompt tokens saved, recomputed what preemption cost.",
        ("account", "kind"),
        values={"kind": TOKEN_KINDS},
    ),
    Metric(
        "vllm_obs_account_requests_total",
        "counter",
        "Ended sequences by account and by how they ended.",
        ("account", "finished_reason"),
        values={"finished_reason": FINISHED_REASONS},
    ),
)

_OBJECTIVES = (
    Metric("vllm_obs_slo_attained_total", "counter", "Ended sequences that kept to all objectives of --slo."),
    Metric(
        "vllm_obs_slo_missed_total",
        "counter",
        "Ended sequences that did not, by the objective missed by most; error is one that failed.",
        ("objective",),
    ),
    Metric("vllm_obs_slo_target_seconds", "gauge", "What --slo promises.", ("objective",)),
    Metric(
        "vllm_obs_slo_attainment_ratio",
        "gauge",
        "Share of the sequences that ended in the window and kept to all objectives; none where none ended.",
        ("window",),
    ),
    Metric(
        "vllm_obs_goodput_requests_per_second",
        "gauge",
        "Sequences a second that ended in the window and kept to all objectives.",
        ("window",),
    ),
)

ECONOMICS_METRICS: tuple[Metric, ...] = (*_ACCOUNTS, *_OBJECTIVES)

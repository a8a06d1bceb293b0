"""EconomicsMetrics: what accounts have spent, as counters that never go back."""

from vllm_obs.telemetry.economics import Economics
from vllm_obs.telemetry.economics_costs import AccountTotals
from vllm_obs.telemetry.metric_store import MetricStore

NS = 1e9
_TOKENS = {
    "prompt": "num_prompt_tokens",
    "cached": "num_cached_tokens",
    "generation": "num_generation_tokens",
    "recomputed": "num_recomputed_tokens",
}


def show_accounts(economics: Economics, store: MetricStore) -> None:
    """Raise the counters of every account to what it has spent."""
    for account, totals in economics.known_accounts().items():
        _show(store, account, totals)


def _show(store: MetricStore, account: str, totals: AccountTotals) -> None:
    store.value("vllm_obs_account_step_seconds_total", account).raise_to(totals.step_ns / NS)
    store.value("vllm_obs_account_block_seconds_total", account).raise_to(totals.block_ns / NS)
    for kind, name in _TOKENS.items():
        store.value("vllm_obs_account_tokens_total", account, kind).raise_to(getattr(totals, name))
    for reason, num in totals.requests.items():
        store.value("vllm_obs_account_requests_total", account, reason).raise_to(num)

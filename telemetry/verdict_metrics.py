"""The verdict's metrics: step time by binding limit, counted, and which findings hold, set at a scrape."""

from collections.abc import Collection

from vllm_obs.telemetry.metric_store import MetricStore
from vllm_obs.telemetry.records import EngineDescribed
from vllm_obs.telemetry.verdict_names import FINDINGS

LIMIT_METRIC = "vllm_obs_binding_limit_seconds_total"
VERDICT_METRIC = "vllm_obs_verdict"


def count_limit(store: MetricStore, described: EngineDescribed, limit: str, seconds: float) -> None:
    """A step of this engine took so long under this limit."""
    if described.model_names:
        labels = (str(described.engine_index), described.model_names[0])
        store.value(LIMIT_METRIC, *labels, limit).add(seconds)


def show_findings(store: MetricStore, names: Collection[str]) -> None:
    """1 for what holds now, 0 for all else that could."""
    for finding in FINDINGS:
        store.value(VERDICT_METRIC, finding).set(finding in names)

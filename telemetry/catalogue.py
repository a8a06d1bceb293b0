"""CATALOGUE: every metric there is, one row each; docs/metrics.md and all series are made from it."""

from vllm_obs.telemetry.catalogue_own import OWN_METRICS
from vllm_obs.telemetry.catalogue_process import HTTP_METRICS, PROCESS_METRICS
from vllm_obs.telemetry.catalogue_row import Metric
from vllm_obs.telemetry.catalogue_vllm import VLLM_METRICS

CATALOGUE: tuple[Metric, ...] = (*PROCESS_METRICS, *VLLM_METRICS, *OWN_METRICS, *HTTP_METRICS)
"""In the order they are exposed."""

BY_NAME: dict[str, Metric] = {metric.name: metric for metric in CATALOGUE}

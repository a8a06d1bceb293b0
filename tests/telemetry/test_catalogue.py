import csv
from pathlib import Path
from typing import get_args

import pytest

from vllm_obs.engine.codec_plain import DropReason
from vllm_obs.engine.errors import Reason
from vllm_obs.telemetry.catalogue import BY_NAME, CATALOGUE
from vllm_obs.telemetry.catalogue_own import ERROR_TYPES, FRAME_REASONS, OWN_METRICS
from vllm_obs.telemetry.catalogue_process import HTTP_METRICS, PROCESS_METRICS
from vllm_obs.telemetry.catalogue_row import TOKEN_BUCKETS, Metric, token_buckets
from vllm_obs.telemetry.catalogue_vllm import VLLM_METRICS

DATA = Path(__file__).parents[1] / "data"

with (DATA / "vllm_metrics.tsv").open(newline="") as lines:
    REFERENCE = list(csv.DictReader(lines, delimiter="\t"))
"""Every metric family of a live vLLM 0.32 whose max_model_len is 2048."""

TOOL_NEEDS = {
    "vllm-htop": """num_requests_running num_requests_waiting kv_cache_usage_perc prompt_tokens_total
        generation_tokens_total request_success_total prefix_cache_queries_total prefix_cache_hits_total
        time_to_first_token_seconds inter_token_latency_seconds request_time_per_output_token_seconds
        e2e_request_latency_seconds request_queue_time_seconds request_prefill_time_seconds
        request_decode_time_seconds process_start_time_seconds""",
    "vllmstat": """num_requests_running num_requests_waiting kv_cache_usage_perc prompt_tokens_total
        prompt_tokens_cached_total prompt_tokens_by_source_total generation_tokens_total iteration_tokens_total
        request_success_total num_preemptions_total prefix_cache_queries_total prefix_cache_hits_total
        external_prefix_cache_queries_total cache_config_info request_prompt_tokens request_generation_tokens
        time_to_first_token_seconds request_time_per_output_token_seconds e2e_request_latency_seconds
        request_queue_time_seconds request_prefill_time_seconds request_decode_time_seconds""",
    "vllm-mon": """kv_cache_usage_perc num_requests_running num_requests_waiting num_preemptions_total
        prompt_tokens_total generation_tokens_total request_success_total prefix_cache_queries_total
        prefix_cache_hits_total time_to_first_token_seconds request_time_per_output_token_seconds
        request_queue_time_seconds e2e_request_latency_seconds""",
    "vllm-doctor": """num_requests_running num_requests_waiting kv_cache_usage_perc request_success_total
        request_queue_time_seconds prefix_cache_queries_total prefix_cache_hits_total num_preemptions_total
        time_to_first_token_seconds request_time_per_output_token_seconds""",
    "vllm-metrics-monitor": """num_requests_running num_requests_waiting kv_cache_usage_perc prompt_tokens_total
        prompt_tokens_cached_total generation_tokens_total request_success_total time_to_first_token_seconds
        inter_token_latency_seconds e2e_request_latency_seconds request_queue_time_seconds request_prompt_tokens
        request_generation_tokens process_start_time_seconds""",
    "vllmpytop": """num_requests_running num_requests_waiting kv_cache_usage_perc prompt_tokens_total
        inter_token_latency_seconds engine_sleep_state request_prefill_time_seconds request_decode_time_seconds""",
    "vllmops": """num_requests_running num_requests_waiting kv_cache_usage_perc generation_tokens_total
        e2e_request_latency_seconds""",
}
"""What public tools read of any server."""

BEHIND_A_FLAG = """gpu_cache_usage_perc num_requests_swapped prompt_tokens_recomputed_total
    estimated_flops_per_gpu_total estimated_read_bytes_per_gpu_total estimated_write_bytes_per_gpu_total"""
"""What some of them read of older servers, or of one that estimates."""

CONFIG_NEEDS = {"num_gpu_blocks", "block_size", "cache_dtype", "gpu_memory_utilization", "enable_prefix_caching"}


def reference_row(name: str) -> dict[str, str]:
    (row,) = [row for row in REFERENCE if row["name"] == name]
    return row


def as_reference(metric: Metric) -> dict[str, str]:
    buckets = token_buckets(2048) if metric.buckets == TOKEN_BUCKETS else metric.buckets
    return {
        "name": metric.name,
        "type": metric.kind,
        "labels": ",".join(sorted(metric.labels)),
        "buckets": ",".join(map(str, buckets)),
        "when": metric.when,
    }


def find(name: str) -> Metric | None:
    return BY_NAME.get(name) or BY_NAME.get(f"vllm:{name}")


@pytest.mark.parametrize("name", [row["name"] for row in REFERENCE])
def test_every_metric_of_vllm_has_its_type_labels_and_buckets(name: str) -> None:
    assert as_reference(BY_NAME[name]) == reference_row(name)


def test_nothing_calls_itself_vllms_that_is_not() -> None:
    known = {row["name"] for row in REFERENCE}
    ours = [metric for metric in (*VLLM_METRICS, *HTTP_METRICS, *PROCESS_METRICS) if metric.name not in known]
    assert {metric.when for metric in ours} == {"--show-hidden-metrics-for-version"}
    assert all(metric.name.startswith("vllm_obs_") for metric in OWN_METRICS)


@pytest.mark.parametrize("tool", TOOL_NEEDS)
def test_what_public_tools_read_is_there(tool: str) -> None:
    found = {name: find(name) for name in TOOL_NEEDS[tool].split()}
    assert [name for name, metric in found.items() if metric is None or metric.when != "always"] == []


def test_what_tools_read_of_other_servers_is_behind_a_flag() -> None:
    found = {name: find(name) for name in BEHIND_A_FLAG.split()}
    assert [name for name, metric in found.items() if metric is None or metric.when == "always"] == []


def test_the_cache_configuration_has_what_tools_read() -> None:
    metric = find("cache_config_info")
    assert metric is not None
    assert set(metric.labels) >= CONFIG_NEEDS


def test_each_name_is_there_once_and_says_what_it_means() -> None:
    assert len(BY_NAME) == len(CATALOGUE)
    unsaid = [metric.name for metric in CATALOGUE if not metric.help.endswith(".") or "\n" in metric.help]
    assert unsaid == []


def test_counters_and_only_they_end_in_total() -> None:
    others = [metric.name for metric in CATALOGUE if metric.name.endswith("_total") != (metric.kind == "counter")]
    assert others == ["vllm:iteration_tokens_total"]


def test_closed_sets_are_of_labels_that_exist() -> None:
    assert [metric.name for metric in CATALOGUE if not set(metric.values) <= set(metric.labels)] == []


def test_errors_have_the_engines_words() -> None:
    assert get_args(Reason) == ERROR_TYPES


def test_a_dropped_frames_reasons_are_the_engines() -> None:
    assert get_args(DropReason) == FRAME_REASONS


def test_token_buckets_end_at_the_longest_sequence() -> None:
    assert token_buckets(100) == (1, 2, 5, 10, 20, 50, 100)
    assert token_buckets(99) == (1, 2, 5, 10, 20, 50)
    assert token_buckets(1) == (1,)

from metric_facts import CORE, MetricFacts, begun_facts, generate_two_tokens, rounded

from vllm_obs.telemetry.catalogue_vllm import CACHE_CONFIG_LABELS
from vllm_obs.telemetry.metrics import MetricsView
from vllm_obs.telemetry.records import (
    EngineStateChanged,
    RequestKeyframe,
)
from vllm_obs.telemetry.view import RecordsLost


def iteration_samples(view: MetricsView) -> tuple[list[int], float]:
    histogram = view.store.histogram("vllm:iteration_tokens_total", "0", "model")
    return histogram.counts, histogram.total


def test_iteration_tokens_are_those_each_step_computed() -> None:
    facts = begun_facts()
    facts.submit("a")
    facts.take("a")
    seen = []
    for num_tokens, tokens in ((4, ()), (4, ()), (2, ("a",)), (1, ("a",))):
        before = iteration_samples(facts.view)[1]
        facts.run({"a": num_tokens}, *tokens)
        seen.append(iteration_samples(facts.view)[1] - before)
    assert seen == [4, 4, 2, 1]
    assert facts.view.store.histogram("vllm:iteration_tokens_total", "0", "model").num_observed == 4


def test_step_seconds_by_phase_sum_to_the_step() -> None:
    facts = begun_facts()
    facts.submit("a")
    facts.take("a")
    facts.run({"a": 10}, "a")
    samples = rounded(facts.samples("vllm_obs_step_seconds_sum"))
    assert samples == {
        "vllm_obs_step_seconds_sum{phase=schedule}": 0.001,
        "vllm_obs_step_seconds_sum{phase=prepare}": 0.001,
        "vllm_obs_step_seconds_sum{phase=forward}": 0.001,
        "vllm_obs_step_seconds_sum{phase=sample}": 0.001,
        "vllm_obs_step_seconds_sum{phase=update}": 0.001,
        "vllm_obs_step_seconds_sum{phase=other}": 0.003,
    }


def test_what_waits_for_a_grammar_is_deferred() -> None:
    facts = begun_facts()
    facts.submit("a")
    facts.take("a")
    facts.plan({}, head_reason="grammar")
    samples = facts.samples("vllm:num_requests_waiting")
    assert samples["vllm:num_requests_waiting_by_reason{reason=deferred}"] == samples["vllm:num_requests_waiting"]


def test_who_waits_for_a_grammar_beside_the_queue_is_deferred_and_the_others_are_not() -> None:
    facts = begun_facts()
    for name in ("bound", "runs", "head", "behind"):
        facts.submit(name)
        facts.take(name)
    facts.plan({"runs": 10}, head_reason="max_num_seqs", grammar_ids=("bound",))
    assert facts.samples("vllm:num_requests_waiting") == {
        "vllm:num_requests_waiting": 3,
        "vllm:num_requests_waiting_by_reason{reason=capacity}": 2,
        "vllm:num_requests_waiting_by_reason{reason=deferred}": 1,
    }
    facts.plan({"bound": 10}, head_reason="max_num_seqs")
    assert facts.samples("vllm:num_requests_waiting") == {
        "vllm:num_requests_waiting": 2,
        "vllm:num_requests_waiting_by_reason{reason=capacity}": 2,
    }


def test_who_waits_for_a_grammar_alone_does_so_before_any_step_is_planned() -> None:
    """While nobody else is there, no step is planned that could say it."""
    facts = begun_facts()
    facts.submit("bound")
    facts.take("bound", awaits_grammar=True)
    assert facts.samples("vllm:num_requests_waiting_by") == {
        "vllm:num_requests_waiting_by_reason{reason=deferred}": 1
    }
    facts.later(500)
    facts.run({"bound": 10}, "bound")
    facts.finish("bound")
    waits = rounded(facts.samples("vllm_obs_request_wait_seconds_total"))
    assert waits == {"vllm_obs_request_wait_seconds_total{reason=grammar}": 0.502}


def test_block_usage_and_token_occupancy_differ_by_the_unfilled_part() -> None:
    """Seventeen tokens take two blocks of sixteen."""
    facts = begun_facts()
    for name in ("a", "b"):
        facts.submit(name, num_prompt_tokens=17)
        facts.take(name)
    facts.answer(facts.plan({"a": 17, "b": 17}))
    samples = facts.samples("vllm:kv", "vllm_obs_kv")
    assert samples == {
        "vllm:kv_cache_usage_perc": 4 / 100,
        "vllm_obs_kv_token_occupancy_ratio": 34 / 1600,
        "vllm_obs_kv_tokens": 34,
        "vllm_obs_kv_blocks{state=active}": 4,
        "vllm_obs_kv_blocks{state=free}": 96,
    }
    assert samples["vllm_obs_kv_token_occupancy_ratio"] / samples["vllm:kv_cache_usage_perc"] == 17 / 32


def test_prefix_hits_count_once_though_preemption_looks_again() -> None:
    facts = begun_facts()
    facts.submit("a", num_prompt_tokens=40, max_tokens=5)
    facts.take("a")
    facts.run({"a": 8}, "a", cached={"a": 32})
    facts.submit("b", num_prompt_tokens=5)
    facts.take("b")
    facts.answer(facts.plan({"b": 5}, preempted=("a",)), "b")
    facts.finish("b")
    facts.run({"a": 9}, "a", cached={"a": 32})
    samples = facts.samples("vllm:prefix", "vllm:prompt", "vllm:num_pre", "vllm_obs_pre", "vllm_obs_rec")
    assert {name: value for name, value in samples.items() if "recorder" not in name} == {
        "vllm:prefix_cache_queries_total": 45,
        "vllm:prefix_cache_hits_total": 32,
        "vllm:prompt_tokens_total": 45,
        "vllm:prompt_tokens_by_source_total{source=local_compute}": 13,
        "vllm:prompt_tokens_by_source_total{source=local_cache_hit}": 32,
        "vllm:prompt_tokens_cached_total": 32,
        "vllm:prompt_tokens_cached_by_source_total{source=device}": 32,
        "vllm:num_preemptions_total": 1,
        "vllm_obs_preemptions_total{reason=kv_blocks}": 1,
        "vllm_obs_preempted_tokens_total": 40,
        "vllm_obs_recomputed_tokens_total": 8,
    }


def test_a_prompt_preempted_halfway_is_counted_once() -> None:
    facts = begun_facts()
    facts.submit("a", num_prompt_tokens=30, max_tokens=5)
    facts.take("a")
    facts.run({"a": 20})
    facts.submit("b", num_prompt_tokens=5)
    facts.take("b")
    facts.answer(facts.plan({"b": 5}, preempted=("a",)), "b")
    facts.run({"a": 30}, "a")
    samples = facts.samples("vllm:prompt_tokens_total", "vllm_obs_recomputed_tokens_total")
    assert samples == {"vllm:prompt_tokens_total": 35, "vllm_obs_recomputed_tokens_total": 20}


def test_rows_of_sequences_that_left_meanwhile_are_not_iteration_tokens() -> None:
    facts = begun_facts()
    for name in ("a", "b"):
        facts.submit(name)
        facts.take(name)
    step = facts.plan({"a": 10, "b": 7})
    facts.end("b", "abort")
    facts.release("b", "abort")
    facts.answer(step, "a", num_wasted_rows=1)
    assert iteration_samples(facts.view)[1] == 10
    assert facts.samples("vllm:prompt_tokens_total", "vllm_obs_wasted") == {
        "vllm:prompt_tokens_total": 10,
        "vllm_obs_wasted_rows_total": 1,
    }


def test_how_forward_passes_ran_is_counted_with_padding_and_the_time_of_gpus() -> None:
    facts = begun_facts()
    facts.submit("a")
    facts.take("a")
    facts.run({"a": 10}, "a")
    facts.execution = {"graph_size": 4, "num_padded_tokens": 3, "eager_reason": "", "device_ns": 2_000_000}
    facts.run({"a": 1}, "a")
    facts.execution = {"eager_reason": "batch_size"}
    facts.run({"a": 1}, "a")
    passes = facts.samples("vllm_obs_forward_passes_total")
    assert {labels: count for labels, count in passes.items() if count} == {
        "vllm_obs_forward_passes_total{execution=no_gpu}": 2,
        "vllm_obs_forward_passes_total{execution=graph}": 2,
        "vllm_obs_forward_passes_total{execution=batch_size}": 2,
    }
    assert facts.samples("vllm_obs_padded", "vllm_obs_step_device") == {
        "vllm_obs_padded_tokens_total": 6,
        "vllm_obs_step_device_seconds_total": 0.004,
    }


def test_no_lookups_are_counted_without_prefix_caching() -> None:
    facts = MetricFacts()
    facts.describe(enable_prefix_caching=False)
    generate_two_tokens(facts)
    assert facts.samples("vllm:prefix_cache") == {}


def test_no_lookup_is_counted_for_a_prompt_that_must_pass_the_model_whole() -> None:
    facts = begun_facts()
    for name, skips_cache in (("embedded", True), ("asked", False)):
        facts.submit(name)
        facts.take(name, skips_cache=skips_cache)
    facts.run({"embedded": 10, "asked": 10}, "asked")
    assert facts.samples("vllm:prefix_cache") == {"vllm:prefix_cache_queries_total": 10}


def test_every_millisecond_of_the_loop_is_busy_or_idle() -> None:
    facts = begun_facts()
    begun_at = facts.now
    facts.later(5000)
    facts.submit("a")
    facts.take("a")
    facts.run({"a": 10}, "a")
    facts.later(5000)
    samples = rounded(facts.samples("vllm_obs_engine_loop"))
    # Nothing is said of the last second: what happened in it may not have been read.
    assert round(sum(samples.values()), 9) == (facts.now - begun_at) / 1e9 - 1
    assert samples["vllm_obs_engine_loop_seconds_total{state=busy}"] == 0.008


def test_a_step_that_hangs_is_busy_time() -> None:
    facts = begun_facts()
    facts.submit("a")
    facts.take("a")
    facts.plan({"a": 10})
    facts.later(4000)
    busy = "vllm_obs_engine_loop_seconds_total{state=busy}"
    assert rounded(facts.samples(busy.partition("{")[0]))[busy] == 3.001
    assert facts.samples("vllm_obs_queue_depth") == {
        "vllm_obs_queue_depth{queue=steps_in_flight}": 1,
        "vllm_obs_queue_depth{queue=open_sequences}": 1,
    }


def test_a_sleeping_engine_says_so() -> None:
    facts = begun_facts()
    facts.tell(CORE, EngineStateChanged("weights_offloaded", facts.later()))
    assert facts.samples("vllm:engine_sleep") == {"vllm:engine_sleep_state{sleep_state=weights_offloaded}": 1}
    facts.tell(CORE, EngineStateChanged("paused", facts.later()))
    assert facts.samples("vllm:engine_sleep") == {"vllm:engine_sleep_state{sleep_state=awake}": 1}


def test_estimates_follow_the_models_size() -> None:
    facts = MetricFacts(enable_mfu_metrics=True)
    facts.describe()
    facts.submit("a")
    facts.take("a")
    facts.run({"a": 10}, "a")
    facts.run({"a": 1}, "a")
    assert facts.samples("vllm:estimated", "vllm_obs_estimated") == {
        "vllm_obs_estimated_flops_total": 11 * 500,
        "vllm_obs_estimated_read_bytes_total": 2 * 1000 + (10 + 11) * 10,
        "vllm_obs_estimated_write_bytes_total": 11 * 10,
        "vllm:estimated_flops_per_gpu_total": 11 * 500 / 2,
        "vllm:estimated_read_bytes_per_gpu_total": (2 * 1000 + (10 + 11) * 10) / 2,
        "vllm:estimated_write_bytes_per_gpu_total": 11 * 10 / 2,
    }


def test_after_a_loss_keyframes_say_who_is_there() -> None:
    facts = begun_facts()
    facts.state.apply(CORE, RecordsLost(7))
    facts.tell(CORE, RequestKeyframe(5, "lost", True, [1, 2], 20, 20, 0))
    assert facts.samples("vllm:num_requests_running") == {"vllm:num_requests_running": 1}


def test_the_cache_is_described_once_and_anew_by_a_new_engine() -> None:
    facts = begun_facts()
    facts.describe(num_blocks=50)
    family = facts.view.store.families["vllm:cache_config_info"]
    (labels,) = [dict(zip(CACHE_CONFIG_LABELS, values, strict=True)) for values in family.series]
    told = {name: value for name, value in labels.items() if value != "None"}
    assert told == {
        "_block_size_resolved": "True",
        "block_size": "16",
        "cache_dtype": "float32",
        "effective_attention_block_size": "16",
        "enable_prefix_caching": "True",
        "engine": "0",
        "gpu_memory_utilization": "0.9",
        "hash_block_size": "16",
        "is_attention_free": "False",
        "kv_cache_max_concurrency": "0.39",
        "kv_cache_memory_bytes": "4096",
        "kv_cache_size_tokens": "800",
        "kv_sharing_fast_prefill": "False",
        "num_cpu_blocks": "0",
        "num_gpu_blocks": "50",
        "prefix_caching_hash_algo": "sha256",
    }


def test_old_names_have_the_values_of_the_new_ones() -> None:
    facts = MetricFacts(show_hidden_metrics=True)
    facts.describe()
    facts.submit("a", num_prompt_tokens=17)
    facts.take("a")
    facts.answer(facts.plan({"a": 17}))
    samples = facts.samples("vllm:gpu_cache", "vllm:kv_cache", "vllm:num_requests_swapped")
    assert samples == {"vllm:gpu_cache_usage_perc": 0.02, "vllm:kv_cache_usage_perc": 0.02}

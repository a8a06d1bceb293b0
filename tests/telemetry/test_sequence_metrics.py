import pytest
from metric_facts import MS, begun_facts, generate_two_tokens, rounded

EVERY_REQUEST_HISTOGRAM = (
    "vllm:request_prompt_tokens",
    "vllm:request_generation_tokens",
    "vllm:request_max_num_generation_tokens",
    "vllm:request_params_n",
    "vllm:request_params_max_tokens",
    "vllm:request_num_preemptions",
    "vllm:request_prefill_kv_computed_tokens",
    "vllm:request_time_per_output_token_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds",
    "vllm:request_inference_time_seconds",
    "vllm:request_prefill_time_seconds",
    "vllm:request_decode_time_seconds",
)


def test_a_requests_sizes_and_times_are_its_own() -> None:
    """Each stage of the API server 1 ms, each step 9 ms and 3 to the API server."""
    facts = begun_facts()
    generate_two_tokens(facts)
    samples = rounded(facts.samples(*EVERY_REQUEST_HISTOGRAM, "vllm:time_to", "vllm:inter"))
    assert {name.removesuffix("_count") for name in samples if name.endswith("_count")} == {
        *EVERY_REQUEST_HISTOGRAM,
        "vllm:time_to_first_token_seconds",
        "vllm:inter_token_latency_seconds",
    }
    assert all(value == 1 for name, value in samples.items() if name.endswith("_count"))
    assert {name.removesuffix("_sum"): value for name, value in samples.items() if name.endswith("_sum")} == {
        "vllm:request_prompt_tokens": 10,
        "vllm:request_generation_tokens": 2,
        "vllm:request_max_num_generation_tokens": 2,
        "vllm:request_params_n": 1,
        "vllm:request_params_max_tokens": 2,
        "vllm:request_prefill_kv_computed_tokens": 10,
        "vllm:time_to_first_token_seconds": 0.031,
        "vllm:inter_token_latency_seconds": 0.012,
        "vllm:request_time_per_output_token_seconds": 0.012,
        "vllm:request_queue_time_seconds": 0.002,
        "vllm:request_prefill_time_seconds": 0.024,
        "vllm:request_decode_time_seconds": 0.012,
        "vllm:request_inference_time_seconds": 0.036,
        "vllm:e2e_request_latency_seconds": 0.05,
    }


def test_stage_seconds_sum_to_the_latency() -> None:
    facts = begun_facts()
    generate_two_tokens(facts)
    samples = facts.samples("vllm_obs_request_stage_seconds_sum", "vllm:e2e_request_latency_seconds_sum")
    latency = samples.pop("vllm:e2e_request_latency_seconds_sum")
    assert round(sum(samples.values()), 9) == round(latency, 9)
    waits = facts.samples("vllm_obs_request_wait_seconds_total")
    queued = samples["vllm_obs_request_stage_seconds_sum{stage=queue}"]
    assert round(sum(waits.values()), 9) == round(queued, 9)


def test_the_wait_in_the_inbox_counts_for_the_step_in_progress_and_for_the_submit_stage() -> None:
    """`b` is sent during a's step, which ends 7 ms later."""
    facts = begun_facts()
    facts.submit("a")
    facts.take("a")
    step = facts.plan({"a": 10})
    facts.submit("b")
    facts.answer(step, "a")
    facts.take("b")
    facts.run({"a": 1, "b": 10}, "a", "b")
    facts.finish("b")
    samples = rounded(facts.samples("vllm_obs_request_wait_seconds_total", "vllm_obs_request_stage_seconds_sum"))
    # 7 ms in the inbox and 2 in the queue; sent 1 ms after it was tokenized, taken 4 ms after the step.
    assert samples["vllm_obs_request_wait_seconds_total{reason=step_in_progress}"] == 0.009
    assert samples["vllm_obs_request_stage_seconds_sum{stage=submit}"] == 0.012


def test_five_aborted_after_their_first_token_are_in_every_request_histogram() -> None:
    facts = begun_facts()
    names = [f"r{number}" for number in range(5)]
    for name in names:
        facts.submit(name, max_tokens=100)
        facts.take(name)
    facts.run(dict.fromkeys(names, 10), *names)
    for name in names:
        facts.end(name, "abort")
        facts.release(name, "abort")
    samples = facts.samples("vllm:")
    counts = {name: samples.get(f"{name}_count") for name in EVERY_REQUEST_HISTOGRAM}
    assert counts == dict.fromkeys(EVERY_REQUEST_HISTOGRAM, 5)
    assert samples["vllm:request_success_total{finished_reason=abort}"] == 5
    assert samples["vllm:time_to_first_token_seconds_count"] == 5
    assert samples["vllm:generation_tokens_total"] == 5
    assert "vllm:inter_token_latency_seconds_count" not in samples


def test_one_aborted_before_any_token_has_no_first_token_time() -> None:
    facts = begun_facts()
    facts.submit("a")
    facts.take("a")
    facts.end("a", "abort")
    facts.release("a", "abort")
    samples = facts.samples("vllm:")
    assert "vllm:time_to_first_token_seconds_count" not in samples
    assert {name: samples[f"{name}_count"] for name in EVERY_REQUEST_HISTOGRAM} == dict.fromkeys(
        EVERY_REQUEST_HISTOGRAM, 1
    )
    assert "vllm:request_prefill_time_seconds_sum" not in samples


def test_one_token_has_no_pace() -> None:
    """vLLM's histogram counts it as 0; what is typical does not."""
    facts = begun_facts()
    generate_two_tokens(facts)
    for name in ("b", "c"):
        facts.submit(name, max_tokens=1)
        facts.take(name)
        facts.run({name: 10}, name)
        facts.finish(name)
    name = "vllm:request_time_per_output_token_seconds_count"
    assert facts.samples(name) == {name: 3}
    quantiles = facts.view.quantiles.summary("run", facts.now)
    assert {
        measure: quantiles[measure].num_observed for measure in ("e2e", "decode", "time_per_output_token")
    } == {
        "e2e": 3,
        "decode": 3,
        "time_per_output_token": 1,
    }
    assert quantiles["time_per_output_token"].max == pytest.approx(0.012)


def test_sequences_of_one_prompt_count_each() -> None:
    facts = begun_facts()
    names = ["p-0", "p-1", "p-2"]
    for index, name in enumerate(names):
        facts.submit(name, num_sequences=3, sequence_index=index)
        facts.take(name)
    facts.run(dict.fromkeys(names, 10), *names)
    facts.finish("p-0")
    facts.run({"p-1": 1, "p-2": 1}, "p-1", "p-2")
    facts.finish("p-2")
    assert facts.samples("vllm:request_max") == {}
    facts.finish("p-1", "abort")
    assert facts.samples("vllm:request_params_n", "vllm:request_max", "vllm:request_generation") == {
        "vllm:request_params_n_count": 3,
        "vllm:request_params_n_sum": 9,
        "vllm:request_generation_tokens_count": 3,
        "vllm:request_generation_tokens_sum": 5,
        "vllm:request_max_num_generation_tokens_count": 3,
        "vllm:request_max_num_generation_tokens_sum": 6,
    }


def test_tokens_made_after_a_stop_string_are_discarded_ones() -> None:
    facts = begun_facts()
    facts.submit("a", max_tokens=9)
    facts.take("a")
    facts.run({"a": 10}, "a")
    facts.run({"a": 1}, "a")
    facts.end("a", "stop", num_output_tokens=1, last_token_at=facts.now - 20 * MS)
    facts.release("a", "abort")
    assert facts.samples("vllm_obs_discarded", "vllm:gen", "vllm:request_generation_tokens_sum") == {
        "vllm_obs_discarded_tokens_total": 1,
        "vllm:generation_tokens_total": 2,
        "vllm:request_generation_tokens_sum": 1,
    }

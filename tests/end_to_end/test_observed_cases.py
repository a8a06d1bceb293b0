"""Cases in which serving metrics go wrong elsewhere: cancelled streams, chunks, half-filled blocks, many names."""

from collections.abc import Iterator
from typing import Any

import pytest
from load_client import Asked, LoadClient
from observed_server import ObservedServer, Samples, await_that, synthetic, total

LEVELS = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm_obs_kv_tokens",
)
LONG = {"prompt": [5] * 20, "max_tokens": 1500, "ignore_eos": True, "stream": True}
BLOCK_SIZE = 16
NUM_BLOCKS = 200
NUM_PROMPT_TOKENS = 17
NUM_NAMES = 500
PATIENCE = 3
"""A promised second is asserted at three times its length: machines that test have other work too."""


@pytest.fixture(scope="module")
def server() -> Iterator[ObservedServer]:
    with synthetic() as running:
        yield running


def series(samples: Samples) -> set[tuple[Any, ...]]:
    return {(name, *sorted(labels.items())) for name, found in samples.items() for labels, _ in found}


def test_the_levels_are_zero_a_second_after_twenty_streams_were_cancelled(server: ObservedServer) -> None:
    before = total(server.samples(), "vllm:request_success_total", finished_reason="abort")
    seen = LoadClient(server.port, 20).run(Asked(f"cancel-{n}", LONG, leave_events=2) for n in range(20))
    assert [one.has_left for one in seen] == [True] * 20

    def are_zero() -> Samples | None:
        samples = server.samples()
        return samples if all(total(samples, name) == 0 for name in LEVELS) else None

    samples = await_that(are_zero, seconds=PATIENCE * 1.0)
    assert total(samples, "vllm:request_success_total", finished_reason="abort") - before == 20
    depths = {labels["queue"]: value for labels, value in samples["vllm_obs_queue_depth"]}
    assert (depths["inbox"], depths["waiting"], depths["steps_in_flight"]) == (0, 0, 0)


def test_metrics_without_traces(server: ObservedServer) -> None:
    connection = server.server.connect()
    try:
        connection.request("GET", "/v1/models", headers={"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"})
        response = connection.getresponse()
        response.read()
    finally:
        connection.close()
    assert (response.headers["X-Trace-Id"], response.headers["traceparent"]) == (None, None)
    samples = server.samples()
    assert total(samples, "vllm_obs_telemetry_detail_level") == 0
    assert "vllm:num_requests_running" in samples


def test_names_that_clients_make_up_make_no_series(server: ObservedServer) -> None:
    def made_up(kind: str) -> Iterator[Asked]:
        good = {"prompt": "Hi", "max_tokens": 1}
        for number in range(NUM_NAMES):
            name = f"{kind}{number}"
            yield Asked(name, {**good, "user": name})
            yield Asked(name, {**good, "model": name})
            yield Asked(name, good, path=f"/{name}/{name}?{name}={name}")
            yield Asked(name, good, method=f"{kind.upper()}{number}")

    client = LoadClient(server.port, 32)
    client.run(list(made_up("first"))[:8])
    await_that(lambda: "vllm_obs_event_loop_lag_seconds_bucket" in server.samples())  # told once a second
    before = series(server.samples())
    seen = client.run(made_up("name"))
    assert {one.status for one in seen} == {200, 400, 404}
    assert series(server.samples()) == before


def test_a_chunked_prompt_is_one_sample_for_each_step_it_ran_in() -> None:
    with synthetic("--max-num-batched-tokens", "4", "--max-num-seqs", "4") as chunked:
        chunked.complete("chunks", prompt=list(range(100, 110)), max_tokens=2, ignore_eos=True)
        (sequence,) = chunked.request("chunks")["sequences"]
        samples = chunked.samples()
    assert sequence["steps"]["num_scheduled_tokens"] == [4, 4, 2, 1]
    name = "vllm:iteration_tokens_total"
    assert (total(samples, f"{name}_count"), total(samples, f"{name}_sum")) == (4, 11)
    buckets = {labels["le"]: value for labels, value in samples[f"{name}_bucket"]}
    assert (buckets["1.0"], buckets["8.0"]) == (1, 4)


def test_usage_and_occupancy_differ_by_what_is_empty_in_half_filled_blocks() -> None:
    env = {"VLLM_OBS_TEST_HOOKS": "1", "VLLM_OBS_TEST_FAULTS": "sample_tokens=delay:0.3"}
    with synthetic("--num-gpu-blocks-override", str(NUM_BLOCKS), env=env) as slow:
        prompts = [[100 + number] * NUM_PROMPT_TOKENS for number in range(4)]
        events = slow.server.stream("/v1/completions", {"prompt": prompts, "max_tokens": 15, "ignore_eos": True})
        request_id = next(events)["id"].removeprefix("cmpl-")
        filled, usage, occupancy = await_that(lambda: snapshot(slow, request_id))
        events.close()
    assert max(filled) <= 2 * BLOCK_SIZE, filled
    assert usage == pytest.approx(4 * 2 / NUM_BLOCKS, abs=1e-12)
    assert occupancy == pytest.approx(sum(filled) / (NUM_BLOCKS * BLOCK_SIZE), abs=1e-12)
    num_empty = 4 * 2 * BLOCK_SIZE - sum(filled)
    assert usage - occupancy == pytest.approx(num_empty / (NUM_BLOCKS * BLOCK_SIZE), abs=1e-12)


def snapshot(server: ObservedServer, request_id: str) -> tuple[list[int], float, float] | None:
    """Computed tokens of each sequence, usage and occupancy, once all decode and where no step came between."""
    before = server.samples()
    sequences = server.request(request_id)["sequences"]
    after = server.samples()
    if before["vllm_obs_kv_tokens"] != after["vllm_obs_kv_tokens"]:
        return None
    steps = [sequence["steps"] for sequence in sequences]
    filled = [step["num_computed_tokens"][-1] + step["num_scheduled_tokens"][-1] for step in steps]
    if min(filled) < NUM_PROMPT_TOKENS:  # prompts that come a step later than others have a share of it
        return None
    usage, occupancy = "vllm:kv_cache_usage_perc", "vllm_obs_kv_token_occupancy_ratio"
    return filled, total(after, usage), total(after, occupancy)

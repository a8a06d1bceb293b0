"""After a fuzz of mixed requests, counters, ledgers and traces say what the clients saw; nothing is lost."""

import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from load_client import Asked, LoadClient, Seen
from mixed_load import MixedLoad
from observed_server import ObservedServer, Samples, await_that, observed, total

MS = 10**6
NUM_REQUESTS = 2000
PHRASES = ("Once", "upon a time", "there was", "a mouse that", "lived")
SETTINGS = ("--max-model-len", "512", "--num-gpu-blocks-override", "33", "--max-num-seqs", "24")
MANY_AT_ONCE = ("--max-num-mixed-prefill-tokens", "256")
"""So that more sequences begin than there are blocks for all of them to go on."""
PATIENCE = 3
"""The clocks are to agree within 1 ms (median) and 5 ms (99 of 100); machines that test have other work too."""


class Truth(NamedTuple):
    """What clients saw, what the inspector says of each request, and the last scrape."""

    seen: list[Seen]
    told: dict[str, dict[str, Any]]
    samples: Samples
    broken_laws: list[dict[str, Any]]
    num_learned: int

    def sequences(self, seen: Seen) -> list[dict[str, Any]]:
        """The sequences of one request, in order."""
        return sorted(self.told[seen.asked.label]["sequences"], key=_place)

    def all_sequences(self) -> list[dict[str, Any]]:
        return [sequence for seen in self.seen for sequence in self.sequences(seen)]


def _place(sequence: dict[str, Any]) -> tuple[int, int]:
    """By prompt, then by number: the order of choices."""
    return sequence["submitted"]["submitted_at"], sequence["sequence_index"]


def is_over(server: ObservedServer) -> Samples | None:
    """The scrape when nothing runs any more and all ledgers are closed."""
    samples = server.samples()
    levels = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
    is_idle = all(total(samples, name) == 0 for name in levels)
    return samples if is_idle and server.inspect("requests?limit=1")["num_live"] == 0 else None


def learn(server: ObservedServer) -> dict[str, str]:
    """What the model makes of some phrases."""
    replies = {phrase: server.complete(prompt=phrase, max_tokens=8, temperature=0) for phrase in PHRASES}
    return {phrase: reply["choices"][0]["text"] for phrase, reply in replies.items()}


def fuzz(server: ObservedServer) -> Truth:
    phrases = learn(server)
    seen = LoadClient(server.port, concurrency=32).run(MixedLoad(3, phrases).requests(NUM_REQUESTS))
    samples = await_that(lambda: is_over(server))
    told = {one.asked.label: server.request(one.asked.label) for one in seen}
    return Truth(seen, told, samples, server.broken_laws(), len(PHRASES))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObservedServer]:
    with observed(tmp_path_factory.mktemp("fuzz") / "model", *SETTINGS, *MANY_AT_ONCE) as running:
        yield running


@pytest.fixture(scope="module")
def truth(server: ObservedServer) -> Truth:
    return fuzz(server)


def test_the_mix_has_everything_in_it(truth: Truth) -> None:
    statuses = Counter(seen.status for seen in truth.seen)
    assert set(statuses) == {0, 200, 400, 404}
    assert total(truth.samples, "vllm:num_preemptions_total") > 0
    assert total(truth.samples, "vllm:prefix_cache_hits_total") > 0
    reasons = Counter(sequence["finish_reason"] for sequence in truth.all_sequences())
    assert {"stop", "length", "abort"} == set(reasons)


def test_each_request_ended_as_its_client_saw_it(truth: Truth) -> None:
    for seen in truth.seen:
        sequences, http = truth.sequences(seen), truth.told[seen.asked.label]["http"]
        assert [ended["status"] for ended in http] == [499 if seen.has_left else seen.status], seen
        if seen.has_left:
            assert {sequence["finish_reason"] for sequence in sequences} <= {"abort"}, seen
            assert len(sequences) == 1 or seen.asked.leave_seconds, seen
        elif seen.status == 200:
            assert [sequence["finish_reason"] for sequence in sequences] == seen.finish_reasons, seen
            tokens = sum(sequence["num_output_tokens"] for sequence in sequences)
            assert tokens == seen.usage["completion_tokens"], seen
        else:
            assert sequences == [], seen


def test_the_tokens_of_those_who_left_are_the_engines(truth: Truth) -> None:
    aborted = [(seen, one) for seen in truth.seen for one in truth.sequences(seen) if seen.has_left]
    assert len(aborted) > len(truth.seen) / 10
    for seen, sequence in aborted:
        told = sequence["num_output_tokens"]
        in_core = sequence["released"]["num_output_tokens"] if sequence["released"] else 0
        assert len(seen.events) <= told <= in_core, seen
        # Steps that were under way when it left: those told of it in the meantime.
        assert sequence["ended"]["num_output_tokens"] == told


def test_the_stages_sum_to_the_latency_to_the_nanosecond(truth: Truth) -> None:
    for sequence in truth.all_sequences():
        intervals = sequence["intervals"]
        begun, ended = intervals["begun_at"], intervals["ended_at"]
        assert sum(sequence["stage_ns"].values()) == sequence["latency_ns"], sequence
        assert all(earlier <= later for earlier, later in zip(begun, ended, strict=True)), sequence
        assert all(earlier == later for earlier, later in zip(ended, begun[1:], strict=False)), sequence
        assert begun[0] == sequence["received_at"]
        assert min(sequence["stage_ns"].values()) >= 0


def test_the_servers_latency_is_that_of_the_http_exchange(truth: Truth) -> None:
    for seen in truth.seen:
        (http,) = truth.told[seen.asked.label]["http"]
        latencies = {sequence["latency_ns"] for sequence in truth.sequences(seen)}
        assert latencies <= {http["ended_at"] - http["received_at"]}, seen


def test_the_clients_clock_agrees_with_the_servers(truth: Truth, server: ObservedServer) -> None:
    """Of a quieter load, after what `truth` is about: its labels are its own."""
    client = LoadClient(server.port, concurrency=2)
    kept = [relabelled(asked) for asked in MixedLoad(4, learn(server)).requests(300) if not leaves(asked)]
    before = lag_buckets(server.samples())
    seen = client.run(kept)
    lag = lag_ns(before, lag_buckets(await_that(lambda: is_over(server))))
    apart = sorted(
        abs(one.elapsed_ns - sequence["latency_ns"])
        for one in seen
        for sequence in server.request(one.asked.label)["sequences"]
    )
    allowed = 5 * MS + client.max_lag_ns + lag
    assert statistics.median(apart) < PATIENCE * MS
    assert apart[int(0.99 * len(apart))] < PATIENCE * allowed


def leaves(asked: Asked) -> bool:
    return bool(asked.leave_events or asked.leave_seconds)


def relabelled(asked: Asked) -> Asked:
    return replace(asked, label=f"clock-{asked.label}")


def lag_buckets(samples: Samples) -> dict[float, float]:
    """How often the API server's loop ran at most so late (s) so far."""
    found = samples["vllm_obs_event_loop_lag_seconds_bucket"]
    return {float(labels["le"]): value for labels, value in found}


def lag_ns(before: dict[float, float], after: dict[float, float]) -> int:
    """How late it ran at worst meanwhile: the bound of the last bucket that was filled."""
    counts = [(bound, value - before[bound]) for bound, value in after.items()]
    filled = [bound for (_, below), (bound, value) in pairwise([(0.0, 0.0), *counts]) if value > below]
    return round(min(max(filled, default=0.0), 10.0) * 1e9)


def test_counters_equal_the_truth(truth: Truth) -> None:
    sequences, samples = truth.all_sequences(), truth.samples
    expected = Counter(sequence["finish_reason"] for sequence in sequences)
    expected["length"] += truth.num_learned
    counted = {
        labels["finished_reason"]: value for labels, value in samples["vllm:request_success_total"] if value
    }
    assert counted == dict(expected)
    told = sum(sequence["num_output_tokens"] for sequence in sequences) + 8 * truth.num_learned
    made = (
        sum(one["released"]["num_output_tokens"] for one in sequences if one["released"]) + 8 * truth.num_learned
    )
    over = [
        one
        for one in sequences
        if one["released"] and one["num_output_tokens"] > one["released"]["num_output_tokens"]
    ]
    assert over == [], "nobody is told more than was made"
    unreleased = [one for one in sequences if not one["released"] and one["num_output_tokens"]]
    assert unreleased == [], "whatever was made was released"
    assert total(samples, "vllm:request_generation_tokens_sum") == told
    assert total(samples, "vllm:generation_tokens_total") == made
    assert total(samples, "vllm_obs_discarded_tokens_total") == made - told
    num_sequences = len(sequences) + truth.num_learned
    for name in ("e2e_request_latency_seconds", "request_prompt_tokens", "request_generation_tokens"):
        assert total(samples, f"vllm:{name}_count") == num_sequences, name
    # The engine may have made a first token for one that had just left.
    released = [sequence["released"] for sequence in sequences if sequence["released"]]
    num_begun = sum(one["num_output_tokens"] > 0 for one in released) + truth.num_learned
    assert total(samples, "vllm:time_to_first_token_seconds_count") == num_begun
    assert total(samples, "vllm:inter_token_latency_seconds_count") == made - num_begun


def test_http_counters_equal_the_truth(truth: Truth) -> None:
    statuses = Counter(f"{(499 if seen.has_left else seen.status) // 100}xx" for seen in truth.seen)
    statuses["2xx"] += truth.num_learned
    counted: Counter[str] = Counter()
    for labels, value in truth.samples["http_requests_total"]:
        if labels["handler"] in ("/v1/completions", "/v1/chat/completions"):
            counted[labels["status"]] += int(value)
    assert counted == statuses


def test_prompt_tokens_are_counted_once_by_their_source(truth: Truth) -> None:
    """A prompt that was abandoned halfway counts as far as it went."""
    sequences = truth.all_sequences()
    samples = truth.samples
    by_source = total(samples, "vllm:prompt_tokens_by_source_total")
    assert by_source == total(samples, "vllm:prompt_tokens_total")
    whole = sum(one["num_prompt_tokens"] for one in sequences if one["num_output_tokens"])
    all_of_them = sum(one["num_prompt_tokens"] for one in sequences)
    learned = total(samples, "vllm:request_prompt_tokens_sum") - all_of_them
    assert whole <= by_source - learned <= all_of_them


def test_no_law_was_broken_and_nothing_was_lost(truth: Truth) -> None:
    assert truth.broken_laws == []
    assert total(truth.samples, "vllm_obs_invariant_violations_total") == 0
    assert total(truth.samples, "vllm_obs_recorder_lost_records_total") == 0
    assert total(truth.samples, "vllm_obs_exporter_failures_total") == 0
    assert [sequence for sequence in truth.all_sequences() if sequence["is_partial"]] == []

"""What is said of load: the sentence, the figures it rests on, what would help and what would not."""

from collections import Counter
from dataclasses import replace

import pytest
from window_facts import DESCRIBED, S, minute, only

from vllm_obs.telemetry.verdict_findings import findings_of
from vllm_obs.telemetry.verdict_load import kv_pressure, long_prefill, max_num_seqs, preemption_storm, token_budget
from vllm_obs.telemetry.verdict_words import verdict_document

STORM = {"preempted": 90.0, "preempted_wait_ns": 30.0, "preempted_waiting_ns": 180.0, "storm_ns": 36.0}
RULES = (kv_pressure, preemption_storm, token_budget, max_num_seqs, long_prefill)


@pytest.mark.parametrize("rule", RULES)
def test_a_load_that_waits_for_nothing_has_no_finding(rule: object) -> None:
    assert callable(rule)
    assert rule(minute()) is None


def test_waiting_for_blocks() -> None:
    finding = only(kv_pressure(minute(kv_ns=45)))
    assert finding.says == (
        "Requests wait for KV blocks 75 % of the time: then 300 of 500 blocks are held by 10.0 that run, and 5.0 "
        "wait."
    )
    assert finding.helps == (
        "raise --num-gpu-blocks-override from 500 to about 800 (or drop it), or "
        "--kv-cache-memory-bytes from 64M to about 102M",
    )
    assert finding.helps_not == (
        "raising --max-num-seqs: 10.0 of 32 run",
        "raising --max-num-batched-tokens: steps use 20 % of it",
    )
    assert finding.evidence == {
        "kv_wait_share": 0.75,
        "num_running_mean": 10.0,
        "num_waiting_mean": 5.0,
        "max_num_seqs": 32.0,
        "kv_blocks_held_mean": 300.0,
        "kv_blocks": 500.0,
        "tokens_per_step_mean": 100.0,
        "max_num_batched_tokens": 512.0,
    }


def test_without_an_override_the_memory_is_what_helps() -> None:
    finding = only(kv_pressure(minute(DESCRIBED._replace(num_blocks_override=0), kv_ns=45)))
    assert finding.helps == (
        "raise --kv-cache-memory-bytes from 64M to about 102M (500 to about 800 blocks), "
        "or --gpu-memory-utilization",
    )


def test_more_blocks_are_asked_for_only_as_far_as_there_are_places() -> None:
    """A thousand wait, 22 places are left for them: 300 blocks and 22 times 30 more."""
    finding = only(kv_pressure(minute(kv_ns=45, waiting_ns=60_000)))
    assert "from 500 to about 1000 (" in finding.helps[0]


def test_a_preemption_storm() -> None:
    """In the 36 s of it 60 000 tokens are computed."""
    facts = minute(**STORM, recomputed_tokens=15_000, kv_ns=40)
    finding = only(preemption_storm(facts))
    assert finding.says == (
        "Running requests take each other's KV blocks: 90 preemptions in 36 s of 60 s, and 25 % of the tokens "
        "computed in that time are computed again."
    )
    assert finding.helps[1] == "lower --max-num-seqs from 32 to about 5"
    assert finding.helps_not[0] == "raising --max-num-seqs: more would take each other's blocks"
    assert (finding.share, finding.is_severe) == (0.5, True)


def test_right_after_preemptions_nothing_is_computed_again_yet() -> None:
    says = only(preemption_storm(minute(**{**STORM, "storm_ns": 60.0}))).says
    assert says.endswith(": 90 preemptions in 60 s, and no token is computed again yet.")


def test_figures_and_advice_are_of_the_time_in_which_requests_waited() -> None:
    """50 calm seconds, in which 1 runs on 30 blocks; then 10 s in which 10 run on 490 and 8 wait."""
    crowded = Counter(minute(kv_ns=10).sums)
    for name, (before, then) in {"waiting_ns": (0, 8), "running_ns": (1, 10), "active_ns": (30, 490)}.items():
        crowded[name] = 50 * S * before + 10 * S * then
        crowded[f"{name}@kv_ns"] = 10 * S * then
    crowded.update({"tokens@kv_ns": 5_000 - crowded["tokens@kv_ns"]})
    finding = only(kv_pressure(replace(minute(), sums=crowded)))
    assert finding.says == (
        "Requests wait for KV blocks 17 % of the time: then 490 of 500 blocks are held by 10.0 that run, and 8.0 "
        "wait."
    )
    assert finding.helps[0].startswith("raise --num-gpu-blocks-override from 500 to about 1000 (or drop it)")
    assert finding.evidence["tokens_per_step_mean"] == pytest.approx(30)


@pytest.mark.parametrize("changes", [{"preempted": 4}, {"preempted_waiting_ns": 50}])
def test_some_preemptions_are_no_storm_but_a_wait_for_blocks(changes: dict[str, float]) -> None:
    facts = minute(**{**STORM, **changes}, kv_ns=40)
    assert preemption_storm(facts) is None
    assert only(kv_pressure(facts)).share == pytest.approx(40 / 60)


def test_in_a_storm_only_those_wait_for_blocks_who_never_had_any() -> None:
    assert kv_pressure(minute(**STORM, kv_ns=40)) is None
    assert only(kv_pressure(minute(**STORM, kv_ns=40, fresh_kv_ns=15))).share == 0.25


def test_full_steps() -> None:
    finding = only(token_budget(minute(budget_ns=48, tokens=490_000)))
    assert finding.says == (
        "Steps are full 80 % of the time: then 490 of 512 tokens are computed on average, and 5.0 requests wait."
    )
    assert finding.helps[0] == "raise --max-num-batched-tokens from 512 to about 1024, if steps may take longer"
    assert finding.helps_not == (
        "more KV blocks: 60 % of the 500 are held",
        "raising --max-num-seqs: 10.0 of 32 run",
    )


def test_steps_that_have_their_share_of_prompt_tokens() -> None:
    finding = only(token_budget(minute(budget_ns=48, tokens=90_000, **{"limit/prefill_share": 48})))
    assert finding.says == (
        "Steps have their share of prompt tokens 80 % of the time: then 90 of 512 tokens are computed on average, "
        "and 5.0 requests wait."
    )
    assert finding.helps[0] == "raise --max-num-mixed-prefill-tokens, if steps may take longer"


def test_a_limit_that_is_binding_as_well_is_not_said_to_be_no_help() -> None:
    assert only(token_budget(minute(budget_ns=30, kv_ns=10, seqs_ns=10))).helps_not == ()


def test_all_places_taken() -> None:
    finding = only(max_num_seqs(minute(DESCRIBED._replace(max_num_seqs=10), seqs_ns=57)))
    assert finding.says == (
        "All 10 places for running requests are taken 95 % of the time, and 5.0 requests wait then."
    )
    assert finding.helps == ("raise --max-num-seqs from 10 to about 15",)
    assert finding.helps_not == (
        "more KV blocks: 60 % of the 500 are held",
        "raising --max-num-batched-tokens: steps use 20 % of it",
    )


def test_more_places_need_more_blocks_where_all_are_held() -> None:
    facts = minute(DESCRIBED._replace(max_num_seqs=10), seqs_ns=57, active_ns=500 * 60)
    (helps,) = only(max_num_seqs(facts)).helps
    assert helps.startswith("raise --max-num-seqs from 10, with more KV blocks: raise --num-gpu-blocks-override")


def test_where_blocks_run_short_too_places_count_less() -> None:
    assert max_num_seqs(minute(seqs_ns=15)) is not None
    assert max_num_seqs(minute(seqs_ns=15, preempted=1)) is None


def test_very_long_prompts() -> None:
    sums = {"long_ns": 15, "long_steps": 200, "long_step_ns": 18, "long_tokens": 98_000, "delayed_tokens": 900}
    finding = only(long_prefill(minute(**sums, decode_steps=800, decode_ns=12)))
    assert finding.says == (
        "Chunks of very long prompts, 490 tokens each, fill the steps of 25 % of the time: a token takes 90 ms "
        "beside them and 15 ms without."
    )
    assert finding.helps[0] == "lower --max-num-batched-tokens from 512 to about 80: shorter chunks delay less"
    unknown = only(long_prefill(minute(**sums)))
    assert unknown.says.endswith("a token takes 90 ms beside them.")
    assert long_prefill(minute(**sums, decode_steps=800, decode_ns=60)) is None


def test_limits_that_nobody_knows_are_not_advised_on() -> None:
    facts = minute(None, seqs_ns=60, kv_ns=60, budget_ns=60, preempted=50)
    assert findings_of(facts) == []
    document = verdict_document("1m", [facts], [], [])
    assert document["word"] == "cannot_tell"
    assert document["says"] == (
        "Cannot tell: what limits engine 0 has is not known: the record in which it told was lost."
    )

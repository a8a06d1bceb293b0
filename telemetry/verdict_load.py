"""Findings of load: the limits that keep requests waiting, and long prompts that keep others' tokens waiting."""

from vllm_obs.telemetry.verdict_capacity import BLOCKS, SEQS, TOKENS, Capacity, percent, round_down
from vllm_obs.telemetry.verdict_tally import LIMIT, during
from vllm_obs.telemetry.verdict_window import NS, Finding, WindowFacts

MIN_KV_SHARE = 0.15
MIN_STORM_WAITING = 1.0
"""Sequences that wait to run again, on average; where blocks run short only now and then they are a quarter."""
MIN_STORM_PREEMPTIONS = 5
GROWTH = 2.0
"""A sequence that grows holds, on average, half of what it will hold."""
MIN_BUDGET_SHARE = 0.1
MIN_BUDGET_SHARE_UNSHORT = 0.2
"""Of the time in which nobody waits to run again, since then the budget is not looked at."""
MIN_SEQS_SHARE = 0.2
MIN_SEQS_SHARE_BESIDE_PREEMPTION = 0.32
"""Where blocks run short as well, more places would mostly be places to lose them."""
MIN_LONG_SHARE = 0.04
MIN_STRETCH = 1.5
"""A token takes so many times as long beside a long prompt, where it is known what it takes without."""


def kv_pressure(facts: WindowFacts) -> Finding | None:
    """Requests wait for KV blocks; in a storm only those count that wait behind nobody who lost them."""
    condition = "fresh_kv_ns" if _is_storm(facts) else "kv_ns"
    share = facts.share_of_work(condition)
    if share < MIN_KV_SHARE:
        return None
    capacity = Capacity(facts, condition)
    says = (
        f"Requests wait for KV blocks {percent(share)} of the time: then {capacity.num_active_blocks:.0f} of "
        f"{capacity.num_blocks} blocks are held by {capacity.num_running:.1f} that run, and "
        f"{capacity.num_waiting:.1f} wait."
    )
    return Finding(
        "kv_pressure",
        share,
        says,
        {"kv_wait_share": share, **capacity.evidence()},
        (capacity.more_blocks(),),
        capacity.useless(SEQS, TOKENS),
    )


def preemption_storm(facts: WindowFacts) -> Finding | None:
    """Those that run take each other's blocks, and compute again what they had."""
    num_preempted, share = facts.sums["preempted"], facts.share_of_work("preempted_wait_ns")
    recomputed = facts.ratio("recomputed_tokens", during("tokens", "storm_ns"))
    if not _is_storm(facts):
        return None
    capacity = Capacity(facts, "preempted_wait_ns")
    says = (
        f"Running requests take each other's KV blocks: {num_preempted:.0f} preemptions in {_time_of(facts)}, "
        f"{_recomputed_words(recomputed)}."
    )
    fitting = max(1, round_down(capacity.num_running / GROWTH))
    helps = [capacity.more_blocks(GROWTH)]
    if fitting < capacity.max_num_seqs:
        helps.append(f"lower --max-num-seqs from {capacity.max_num_seqs} to about {fitting}")
    return Finding(
        "preemption_storm",
        share,
        says,
        {
            "num_preemptions": num_preempted,
            "recomputed_tokens_share": recomputed,
            "preempted_wait_share": share,
            "num_preempted_waiting_mean": facts.ratio("preempted_waiting_ns", "used_ns"),
            **capacity.evidence(),
        },
        tuple(helps),
        ("raising --max-num-seqs: more would take each other's blocks", *capacity.useless(TOKENS)),
        is_severe=True,
    )


def _time_of(facts: WindowFacts) -> str:
    """How much of the window a storm took."""
    storm, whole = f"{facts.sums['storm_ns'] / NS:.0f} s", f"{facts.seconds:.0f} s"
    return whole if storm == whole else f"{storm} of {whole}"


def _recomputed_words(share: float) -> str:
    if not share:
        return "and no token is computed again yet"
    return f"and {percent(share)} of the tokens computed in that time are computed again"


def _is_storm(facts: WindowFacts) -> bool:
    is_often = facts.sums["preempted"] >= MIN_STORM_PREEMPTIONS
    return is_often and facts.ratio("preempted_waiting_ns", "used_ns") >= MIN_STORM_WAITING


def token_budget(facts: WindowFacts) -> Finding | None:
    """Steps are full of the tokens of ordinary prompts."""
    share = facts.share_of_work("budget_ns")
    unshort = 1.0 - facts.share_of_work("preempted_wait_ns")
    if share < max(MIN_BUDGET_SHARE, MIN_BUDGET_SHARE_UNSHORT * unshort):
        return None
    capacity = Capacity(facts, "budget_ns")
    full, raising = (
        "are full",
        f"raise --max-num-batched-tokens from {capacity.budget} to about {2 * capacity.budget}",
    )
    if facts.sums[f"{LIMIT}prefill_share"] > facts.sums[f"{LIMIT}token_budget"]:
        full, raising = "have their share of prompt tokens", "raise --max-num-mixed-prefill-tokens"
    says = (
        f"Steps {full} {percent(share)} of the time: then {capacity.tokens_per_step:.0f} of "
        f"{capacity.budget} tokens are computed on average, and {capacity.num_waiting:.1f} requests wait."
    )
    return Finding(
        "token_budget",
        share,
        says,
        {
            "token_budget_share": share,
            "step_ms_mean": facts.mean_ms("budget_ns", during("steps", "budget_ns")),
            **capacity.evidence(),
        },
        (f"{raising}, if steps may take longer", "another engine"),
        capacity.useless(BLOCKS, SEQS),
    )


def max_num_seqs(facts: WindowFacts) -> Finding | None:
    """All places for running sequences are taken."""
    share = facts.share_of_work("seqs_ns")
    if share < (MIN_SEQS_SHARE_BESIDE_PREEMPTION if facts.sums["preempted"] else MIN_SEQS_SHARE):
        return None
    capacity = Capacity(facts, "seqs_ns")
    says = (
        f"All {capacity.max_num_seqs} places for running requests are taken {percent(share)} of the time, "
        f"and {capacity.num_waiting:.1f} requests wait then."
    )
    wanted = capacity.seqs_wanted()
    helps = [f"raise --max-num-seqs from {capacity.max_num_seqs} to about {wanted}"]
    if wanted <= capacity.max_num_seqs:
        helps = [
            f"raise --max-num-seqs from {capacity.max_num_seqs}, with more KV blocks: {capacity.more_blocks()}"
        ]
    return Finding(
        "max_num_seqs",
        share,
        says,
        {"max_num_seqs_share": share, **capacity.evidence()},
        tuple(helps),
        capacity.useless(BLOCKS, TOKENS),
    )


def long_prefill(facts: WindowFacts) -> Finding | None:
    """A few very long prompts run in many chunks, and everybody's tokens wait for the chunks."""
    share = facts.share_of_work("long_ns")
    beside, alone = facts.mean_ms("long_step_ns", "long_steps"), facts.mean_ms("decode_ns", "decode_steps")
    stretch = beside / alone if alone else MIN_STRETCH
    if share < MIN_LONG_SHARE or stretch < MIN_STRETCH:
        return None
    capacity = Capacity(facts, "long_ns")
    per_step = facts.ratio("long_tokens", "long_steps")
    without = f" and {alone:.0f} ms without" if alone else ""
    says = (
        f"Chunks of very long prompts, {per_step:.0f} tokens each, fill the steps of {percent(share)} of the "
        f"time: a token takes {beside:.0f} ms beside them{without}."
    )
    fitting = max(16, round_down(capacity.budget / stretch))
    return Finding(
        "long_prefill",
        share,
        says,
        {
            "long_prefill_share": share,
            "step_ms_beside_long_prompts": beside,
            "step_ms_of_decodes_alone": alone,
            "long_tokens_per_step": per_step,
            "num_delayed_tokens": facts.sums["delayed_tokens"],
            **capacity.evidence(),
        },
        (
            f"lower --max-num-batched-tokens from {capacity.budget} to about {fitting}: shorter chunks delay less",
            "another engine for the long prompts",
        ),
        (
            "raising --max-num-batched-tokens: the chunks would delay the others longer",
            *capacity.useless(BLOCKS, SEQS),
        ),
    )

"""The binding limit of a step: what kept it from taking in more work, one word from a closed set."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from vllm_obs.telemetry.records import StepPlanned

UNDERLOADED: Final = "underloaded"
"""Nobody waited and nobody was left out: one more would have been let in."""
PREEMPTION: Final = "preemption"
"""Somebody who ran had to give its blocks back."""
OTHER_LIMIT: Final = "other"

_OF_REASON: Mapping[str, str] = MappingProxyType(
    {
        "paused": "paused",
        "priority": "priority",
        "kv_blocks": "kv_blocks",
        "max_num_seqs": "max_num_seqs",
        "token_budget": "token_budget",
        "prefill_share": "prefill_share",
        "remote_kv": "waiting_on_remote_kv",
        "lora_slots": "lora_slots",
        "grammar": "waiting_on_grammar",
    }
)
"""A wait's reason → the limit behind it, the strongest first: of several left out that one is told."""

_NO_LIMITS = frozenset({"", "step_in_progress", "head_of_line"})
"""Reasons that say nothing of a limit: the sequence has its place, or stands behind one that has the reason."""

BINDING_LIMITS: Final[tuple[str, ...]] = (*_OF_REASON.values(), PREEMPTION, UNDERLOADED, OTHER_LIMIT)


BEFORE_BLOCKS = frozenset({"max_num_seqs", "token_budget", "prefill_share"})
"""Reasons that the scheduler looks at before it looks for blocks."""


def binding_limit(planned: StepPlanned, max_num_batched_tokens: int = 0, head_fits: bool = True) -> str:
    """The limit of a plan. Without the budget (0: not known) a step that fills it exactly is not seen to.

    The head of the queue is asked first, then the running who were left out; where neither has a reason a full
    budget is a limit all the same, since it cut a prompt short or would have kept out the next. A head for which
    there were no blocks either (not `head_fits`) waits for those, whatever the scheduler looked at first.
    """
    if planned.preempted_ids:
        return "priority" if planned.head_reason == "priority" else PREEMPTION
    if planned.head_reason not in _NO_LIMITS:
        if planned.head_reason in BEFORE_BLOCKS and not head_fits:
            return "kv_blocks"
        return _OF_REASON.get(planned.head_reason, OTHER_LIMIT)
    left_out = set(planned.left_out_reasons) - _NO_LIMITS if planned.left_out_reasons else set()
    if planned.grammar_ids:
        left_out.add("grammar")
    if left_out:
        return next((limit for reason, limit in _OF_REASON.items() if reason in left_out), OTHER_LIMIT)
    if max_num_batched_tokens and sum(planned.num_scheduled_tokens) >= max_num_batched_tokens:
        return "token_budget"
    return UNDERLOADED

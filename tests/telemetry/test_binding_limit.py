"""Every plan has one binding limit, told by who waits and who was left out, in the order of what it says."""

from typing import Any

import pytest

from vllm_obs.telemetry.binding_limit import BINDING_LIMITS, binding_limit
from vllm_obs.telemetry.records import StepPlanned
from vllm_obs.telemetry.wait_reasons import WAIT_REASONS

BUDGET = 8


def plan(num_tokens: int = 1, **changes: Any) -> StepPlanned:
    rows: list[list[Any]] = [["r"], [num_tokens], [0], [0]]
    lists: list[list[Any]] = [[], [], [], [], [], []]
    return StepPlanned(1, 0, 1, *rows, *lists, "", 1, 0, 5, 0, 1)._replace(**changes)


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({}, "underloaded"),
        ({"head_reason": "kv_blocks"}, "kv_blocks"),
        ({"head_reason": "max_num_seqs"}, "max_num_seqs"),
        ({"head_reason": "token_budget"}, "token_budget"),
        ({"head_reason": "grammar"}, "waiting_on_grammar"),
        ({"head_reason": "remote_kv"}, "waiting_on_remote_kv"),
        ({"head_reason": "lora_slots"}, "lora_slots"),
        ({"head_reason": "paused"}, "paused"),
        ({"head_reason": "what a newer engine says"}, "other"),
        ({"grammar_ids": ["g"]}, "waiting_on_grammar"),
        ({"preempted_ids": ["v"], "head_reason": "kv_blocks"}, "preemption"),
        ({"preempted_ids": ["v"], "head_reason": "priority"}, "priority"),
        ({"left_out_ids": ["a"], "left_out_reasons": ["step_in_progress"]}, "underloaded"),
        ({"left_out_ids": ["a", "b"], "left_out_reasons": ["token_budget", "kv_blocks"]}, "kv_blocks"),
        ({"left_out_ids": ["a"], "left_out_reasons": ["token_budget"], "head_reason": "kv_blocks"}, "kv_blocks"),
        ({"num_tokens": BUDGET}, "token_budget"),
        ({"num_tokens": BUDGET - 1}, "underloaded"),
    ],
)
def test_a_plan_has_one_limit(changes: dict[str, Any], limit: str) -> None:
    assert binding_limit(plan(**changes), BUDGET) == limit


def test_a_full_budget_is_not_seen_where_it_is_not_known() -> None:
    assert binding_limit(plan(BUDGET)) == "underloaded"


@pytest.mark.parametrize("reason", ["token_budget", "max_num_seqs"])
def test_a_head_without_blocks_waits_for_blocks(reason: str) -> None:
    """The scheduler looks at the budget and the places first; more of them would not have let it in."""
    assert binding_limit(plan(head_reason=reason), BUDGET, head_fits=False) == "kv_blocks"
    assert binding_limit(plan(head_reason="paused"), BUDGET, head_fits=False) == "paused"


@pytest.mark.parametrize("reason", WAIT_REASONS)
def test_every_reason_leads_to_a_limit_of_the_closed_set(reason: str) -> None:
    found = binding_limit(plan(head_reason=reason))
    assert found in BINDING_LIMITS
    assert found != "other"

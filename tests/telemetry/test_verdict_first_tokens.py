"""First tokens that come late are named where no limit explains them."""

import pytest
from window_facts import minute, only

from vllm_obs.telemetry.verdict_findings import findings_of
from vllm_obs.telemetry.verdict_first_tokens import late_first_tokens

S = 10**9


def test_a_late_minute_is_told_with_what_was_waited_for() -> None:
    sums = {"first_tokens": 40, "late_first_tokens": 4, "late_first_ns": 28, "late_first_wait/seqs": 24.0 * S}
    finding = only(late_first_tokens(minute(**sums)))
    assert finding.says == (
        "First tokens come late: 4 of 40 took over 2 s, 7.0 s on average and 6.0 s of it in the queue "
        "(mostly seqs)."
    )
    assert finding.helps[0].startswith("fewer requests at once")
    assert (finding.share, finding.evidence["most_waited_for"]) == (0.1, "seqs")


def test_prompts_that_take_the_time_themselves_are_told_from_a_queue() -> None:
    finding = only(late_first_tokens(minute(first_tokens=1, late_first_tokens=1, late_first_ns=7)))
    assert finding.helps[0].startswith("shorter prompts")


@pytest.mark.parametrize("num_late", [0, 4])
def test_a_few_late_ones_of_many_are_no_finding(num_late: int) -> None:
    assert late_first_tokens(minute(first_tokens=100, late_first_tokens=num_late)) is None


def test_where_something_else_explains_it_it_is_not_said_twice() -> None:
    late = {"first_tokens": 4, "late_first_tokens": 4, "late_first_ns": 28}
    assert [finding.name for finding in findings_of(minute(**late))] == ["late_first_tokens"]
    paused = {**late, "paused_ns": 30, "limit/paused": 30.0 * S}
    assert "late_first_tokens" not in [finding.name for finding in findings_of(minute(**paused))]

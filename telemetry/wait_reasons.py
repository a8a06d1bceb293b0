"""Why sequences wait: the closed set of reasons, and what the reason of a queue's head says of those behind it."""

from typing import Final, get_args

from vllm_obs.telemetry.records import WaitReason

WAIT_REASONS: Final[tuple[str, ...]] = get_args(WaitReason)

UNKNOWN_REASON = "other"
"""What a reason that a newer engine wrote is called here."""

_SHARED = frozenset({"max_num_seqs", "token_budget", "prefill_share", "paused"})


def known_reason(reason: str) -> str:
    """The reason, if it is of the closed set."""
    return reason if reason in WAIT_REASONS else UNKNOWN_REASON


def reason_behind(head_reason: str) -> str:
    """Why those behind the head wait.

    A limit that would hold them up without the head as well is their reason too. What only the head lacks
    (blocks for its own length, its grammar) makes them wait for the head.
    """
    return head_reason if head_reason in _SHARED else "head_of_line"

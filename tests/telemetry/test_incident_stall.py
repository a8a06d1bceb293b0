"""A stall says what helps while it lasts, and afterwards, in the past tense, how it ended."""

from typing import Any

import pytest

from vllm_obs.telemetry.incident_stall import StallEnd, helps_with, lasts, settled

S = 10**9
STALL = {"engine": "0", "rank": 1, "activity": "executing", "step": 9, "process_state": "T", "stuck_at": 5 * S}


def document(**stall: Any) -> dict[str, Any]:
    return {
        "cause": "stalled",
        "says": "It is stopped.",
        "culprit": {"role": "Worker_TP1", "pid": 77, "stall": {**STALL, **stall}},
        "happened": {"monotonic_at": 15 * S, "wall_at": 1000 * S},
        "requests": {"num_open": 2},
        "timeline": [],
        "helps": ["…"],
    }


@pytest.mark.parametrize(
    ("stall", "how", "ended_at", "words"),
    [
        (
            {},
            "moved",
            11 * S,
            "Engine 0 stood still for 6.0 s and moved again: Worker_TP1 (rank 1, pid 77) was stopped by a signal, "
            "last seen executing in step 9. 2 requests were open.",
        ),
        (
            {"process_state": "D", "rank": -1},
            "died",
            11 * S,
            "Engine 0 stood still for 6.0 s, until its process ended: Worker_TP1 (pid 77) waited in the kernel "
            "(disk or driver), last seen executing in step 9. 2 requests were open.",
        ),
        (
            {"engine": "", "process_state": "S", "rank": -1},
            "run_ended",
            None,
            "An event loop stood still, until the run ended: Worker_TP1 (pid 77) did not get on."
            " 2 requests were open.",
        ),
    ],
)
def test_what_is_said_of_one_that_is_over(
    stall: dict[str, Any], how: StallEnd, ended_at: int | None, words: str
) -> None:
    over = settled(document(**stall), how, ended_at)
    assert over["says"] == words
    assert (over["helps"], lasts(over), lasts(document())) == ([], False, True)


def test_one_that_is_known_by_its_sentence_alone_keeps_it() -> None:
    unwritten = document() | {"culprit": {"role": "Worker_TP1", "pid": 77}}
    assert settled(unwritten, "run_ended", None)["says"] == "It is stopped. (It lasted until the run ended.)"


def test_only_a_stopped_process_is_helped_by_a_signal() -> None:
    assert helps_with("T", 7, 3) == ["kill -CONT 7 lets it go on; a restart loses 3 open requests."]
    assert helps_with("D", 7, 3) == []


def test_what_is_no_stall_does_not_last() -> None:
    assert not lasts({"cause": "killed"})

"""The verdict is the second line of `vllm-obs top`, in colour by how bad it is; what helps has room below."""

from typing import Any

import pytest

from vllm_obs.cli.top_cells import DIM, GREEN, RED, YELLOW, plain
from vllm_obs.cli.top_verdict import verdict_evidence, verdict_lines

SAYS = "Requests wait for KV blocks 75 % of the time: 300 of 500 blocks are held by 10.0 that run, 5.0 wait."
FINDING = {
    "name": "kv_pressure",
    "helps": ["raise --num-gpu-blocks-override from 500 to about 630"],
    "helps_not": ["raising --max-num-seqs: 10.0 of 32 run"],
}


def verdict(word: str = "kv_pressure", severity: str = "severe", **changes: Any) -> dict[str, Any]:
    floor = {"p50": 1.25}
    common = {"window_seconds": 10, "says": SAYS, "findings": [FINDING], "floor": floor}
    return {"word": word, "severity": severity, **common} | changes


@pytest.mark.parametrize(
    ("word", "severity", "colour"),
    [
        ("kv_pressure", "severe", RED),
        ("kv_pressure", "warning", YELLOW),
        ("well", "none", GREEN),
        ("cannot_tell", "none", DIM),
    ],
)
def test_the_colour_says_how_bad_it_is(word: str, severity: str, colour: str) -> None:
    (line,) = verdict_lines(verdict(word, severity), 130)
    window = "" if word == "cannot_tell" else "In the last 10 s: "
    assert (line.startswith(colour), plain(line)) == (True, window + SAYS)


def test_a_state_is_of_no_window() -> None:
    (line,) = verdict_lines(verdict("engine_dead", says="The engine is dead."), 110)
    assert plain(line) == "The engine is dead."


def test_what_helps_is_told_with_its_numbers() -> None:
    assert [plain(line) for line in verdict_evidence(verdict(), 110)] == [
        "  kv_pressure  helps: raise --num-gpu-blocks-override from 500 to about 630",
        "  kv_pressure  helps not: raising --max-num-seqs: 10.0 of 32 run",
        "  half of the steps take at most 1.25 times the least time seen for as much work",
    ]
    assert list(verdict_evidence(verdict(findings=[], floor={"p50": None}), 110)) == []


def test_without_a_verdict_nothing_is_shown() -> None:
    assert [*verdict_lines({}, 80), *verdict_evidence({}, 80)] == []

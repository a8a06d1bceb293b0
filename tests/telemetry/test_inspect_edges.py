"""What is on its way between processes is counted, and delays are those of the last ten seconds."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_run import MS, ScriptedRun

from vllm_obs.telemetry.inspect_edges import WINDOW_SECONDS, edges_view
from vllm_obs.telemetry.observer import Observer
from vllm_obs.telemetry.records import LoopSampled, RequestSubmitted
from vllm_obs.telemetry.ring_tail import RingTail

NONE = {"num": 0, "p50_seconds": None, "p99_seconds": None}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[ScriptedRun]:
    with ScriptedRun(tmp_path) as run:
        run.start()
        yield run


@pytest.fixture
def observer(run: ScriptedRun, tmp_path: Path) -> Iterator[Observer]:
    observer = Observer("run", tmp_path, clock=lambda: run.now)
    observer.tail = RingTail(tmp_path)
    yield observer
    observer.close()


def edges(observer: Observer) -> dict[str, Any]:
    while not observer.drain_slice():
        pass
    return edges_view(observer.state, observer.now())


def same(num: int, seconds: float) -> dict[str, Any]:
    return {"num": num, "p50_seconds": seconds, "p99_seconds": seconds}


def test_delays_both_ways_are_told_by_rank_and_server(run: ScriptedRun, observer: Observer) -> None:
    run.serve("a", num_output=3)
    run.api.record(LoopSampled(0, run.now, 0.001, 1, 1, 7))
    assert edges(observer) == {
        "window_seconds": WINDOW_SECONDS,
        "untaken": {"num": 0, "oldest_seconds": None},
        "engines": [
            {
                "engine": "0",
                "num_steps_in_flight": 0,
                "requests": same(1, 0.001),
                "requests_behind_a_step": same(1, 0.0),
                "ranks": [{"rank": 0, "plans": same(3, 0.0), "answers": same(3, 0.0)}],
                "outputs": [{"client_index": 0, "taken": same(3, 0.0005), "made": same(3, 0.0005)}],
            }
        ],
        "servers": [{"client_index": 0, "num_queued_deltas": 7}],
    }


def test_what_no_core_has_taken_waits_visibly(run: ScriptedRun, observer: Observer) -> None:
    at = run.now
    for number in range(3):
        sent = at + number * MS
        run.api.record(
            RequestSubmitted(
                f"r-{number}", 0, "", "", 0, 1, 1, "chat", True, "tiny", "", sent, sent, sent, sent, sent, 9, 9, 0,
                1.0, 1.0, 0,
            )
        )  # fmt: skip
    run.pass_time(250)
    assert edges(observer)["untaken"] == {"num": 3, "oldest_seconds": 0.25}


def test_what_is_older_than_the_window_does_not_count(run: ScriptedRun, observer: Observer) -> None:
    run.serve("a")
    run.pass_time(1000 * WINDOW_SECONDS + 100)
    found = edges(observer)["engines"][0]
    assert (found["requests"], found["ranks"], found["outputs"]) == (NONE, [], [])

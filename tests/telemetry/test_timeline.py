"""The timeline is a Chrome trace that loads: named tracks, events in order of time, no negative length."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_run import ScriptedRun

from vllm_obs.telemetry import timeline as timeline_module
from vllm_obs.telemetry.inspect_timeline import drawing_of
from vllm_obs.telemetry.observer import Observer
from vllm_obs.telemetry.records import StepAnswered, StepPlanned, WorkerStep
from vllm_obs.telemetry.ring_tail import RingTail
from vllm_obs.telemetry.step_history import StepFacts


@pytest.fixture
def run(tmp_path: Path) -> Iterator[ScriptedRun]:
    with ScriptedRun(tmp_path) as run:
        run.start()
        yield run


def drawn(
    run: ScriptedRun, run_dir: Path, last_seconds: float = 3600.0, until: int | None = None
) -> dict[str, Any]:
    """The timeline of all that the run has recorded, as it would be read back."""
    observer = Observer("run", run_dir, clock=lambda: until or run.now)
    observer.tail = RingTail(run_dir)
    while not observer.drain_slice():
        pass
    observer.close()
    found: dict[str, Any] = json.loads(
        json.dumps(timeline_module.chrome_trace(drawing_of(observer, last_seconds)))
    )
    return found


def tracks(found: dict[str, Any]) -> dict[tuple[int, int], tuple[str, str]]:
    """Process and thread names by Chrome's numbers."""
    names = {
        (event["pid"], event["tid"]): event["args"]["name"] for event in found["traceEvents"] if event["ph"] == "M"
    }
    return {key: (names[key[0], 0], name) for key, name in names.items() if key[1]}


def slices(found: dict[str, Any], track: tuple[str, str]) -> list[tuple[str, float, float]]:
    """(name, begin, length) in ms of one track."""
    named = tracks(found)
    return [
        (event["name"], event["ts"] / 1000, event["dur"] / 1000)
        for event in found["traceEvents"]
        if event["ph"] == "X" and named[event["pid"], event["tid"]] == track
    ]


def test_a_request_is_drawn_with_its_steps(run: ScriptedRun, tmp_path: Path) -> None:
    run.serve("a", num_output=2)
    found = drawn(run, tmp_path)
    assert slices(found, ("requests", "a-0-0")) == [
        ("receive", 100, 1), ("render", 101, 1), ("tokenize", 102, 1), ("submit", 103, 2),
        ("queue: step_in_progress", 105, 1), ("prefill", 106, 8), ("decode", 114, 10), ("return", 124, 2),
        ("detokenize", 126, 1), ("deliver", 127, 1),
    ]  # fmt: skip
    assert slices(found, ("EngineCore_DP0", "steps"))[:5] == [
        ("step 1", 105, 10), ("schedule", 105, 1), ("execute", 106, 6), ("sample", 112, 2), ("update", 114, 1),
    ]  # fmt: skip
    assert [name for name, _, _ in slices(found, ("EngineCore_DP0", "rank 0"))] == [
        "prepare",
        "forward",
        "sample",
    ] * 2
    assert slices(found, ("APIServer_0", "outputs")) == [("outputs", 115.5, 0.5), ("outputs", 125.5, 0.5)]
    assert slices(found, ("APIServer_0", "start-up")) == [("imports", 0, 40), ("load", 40, 60)]


def test_times_are_in_order_and_nothing_is_of_negative_length(run: ScriptedRun, tmp_path: Path) -> None:
    run.submit("open")
    run.step("open")
    for number in range(20):
        run.serve(f"r{number}")
    run.submit("waits")
    found = drawn(run, tmp_path)
    events = [event for event in found["traceEvents"] if event["ph"] != "M"]
    times = [event["ts"] for event in events]
    assert times == sorted(times)
    assert min(times) == 0
    assert all(event["dur"] >= 0 for event in events if event["ph"] == "X")
    assert all((event["pid"], event["tid"]) in tracks(found) for event in events)


def test_arrows_have_two_ends_and_point_forward(run: ScriptedRun, tmp_path: Path) -> None:
    for number in range(5):
        run.serve(f"r{number}")
    ends: dict[int, dict[str, float]] = {}
    for event in drawn(run, tmp_path)["traceEvents"]:
        if event["ph"] in "sf":
            ends.setdefault(event["id"], {})[event["ph"]] = event["ts"]
    assert len(ends) == 5 * (3 + 2)
    assert all(arrow["s"] <= arrow["f"] for arrow in ends.values())


def test_only_the_window_is_drawn(run: ScriptedRun, tmp_path: Path) -> None:
    run.serve("before")
    run.pass_time(10_000)
    run.serve("within")
    names = {thread for _, thread in tracks(drawn(run, tmp_path, last_seconds=5.0)).values()}
    assert "within-0-0" in names
    assert not names & {"before-0-0", "start-up"}


def test_one_that_waits_is_drawn_up_to_now(run: ScriptedRun, tmp_path: Path) -> None:
    run.submit("a")
    run.pass_time(500)
    assert slices(drawn(run, tmp_path), ("requests", "a-0-0"))[-1] == ("queue: step_in_progress", 105, 500)


def test_an_idle_run_is_an_empty_drawing(run: ScriptedRun, tmp_path: Path) -> None:
    found = drawn(run, tmp_path, last_seconds=5.0, until=run.now + 10**12)
    assert found["traceEvents"] == []


def test_a_drawing_that_is_too_large_keeps_the_newest_and_says_so(
    run: ScriptedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline_module, "MAX_EVENTS", 200)
    for number in range(30):
        run.serve(f"r{number}")
    found = drawn(run, tmp_path)
    assert found["otherData"]["num_left_out"] > 0
    assert len([event for event in found["traceEvents"] if event["ph"] != "M"]) <= 200
    assert ("requests", "r29-0-0") in tracks(found).values()
    assert ("requests", "r0-0-0") not in tracks(found).values()


def test_steps_begun_ahead_are_drawn_side_by_side_for_the_core_and_its_rank() -> None:
    """On one track nothing may overlap but what lies within another."""
    steps = []
    for number in range(4):
        at = 10 * number
        planned = StepPlanned(number, at, at + 1, ["a"], [1], [0], [0], [], [], [], [], [], [], "", 1, 0, 0, 0, 0)
        worker = WorkerStep(number, 0, at + 2, at + 3, at + 4, at + 5, at + 15, 1, 1)
        answered = StepAnswered(number, at + 14, at + 16, at + 17, ["a"], [1], 0)
        steps.append(StepFacts("0", planned, [worker], answered))
    drawing = timeline_module.draw(timeline_module.TimelineFacts(0, 100, [], steps, []))
    ends: dict[timeline_module.Track, int] = {}
    for entry in drawing.slices:
        if entry.name.startswith("step ") or entry.name in ("prepare", "forward", "sample"):
            is_of_step = entry.track.thread.startswith("steps")
            if is_of_step and not entry.name.startswith("step "):
                continue
            assert entry.begun_at >= ends.get(entry.track, 0), entry
            ends[entry.track] = entry.ended_at
    assert {track.thread for track in ends} == {"steps", "steps 2", "rank 0", "rank 0 2"}

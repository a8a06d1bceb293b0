"""A capture is written in speedscope's format: shared frames, a profile for each role and for each thread."""

import json
from collections import Counter
from typing import Any

import pytest
from sample_sets import MAIN, STEP, STEP_LATER, WAIT, engine_samples

from vllm_obs.telemetry import speedscope
from vllm_obs.telemetry.sample_set import Frame, SampleSet, StackRun, ThreadSamples
from vllm_obs.telemetry.speedscope import SCHEMA, speedscope_file


def check_format(file: Any) -> None:
    """Hold a file to the published schema, as far as it is about sampled profiles."""
    assert set(file) == {"$schema", "name", "exporter", "activeProfileIndex", "shared", "profiles"}
    assert file["$schema"] == SCHEMA
    assert all(type(file[name]) is str for name in ("name", "exporter"))
    assert set(file["shared"]) == {"frames"}
    for frame in file["shared"]["frames"]:
        assert set(frame) in ({"name"}, {"name", "file", "line"})
        assert type(frame["name"]) is str
        assert type(frame.get("file", "")) is str
        assert type(frame.get("line", 0)) is int
    for profile in file["profiles"]:
        check_profile(profile, len(file["shared"]["frames"]))
    assert not file["profiles"] or 0 <= file["activeProfileIndex"] < len(file["profiles"])


def check_profile(profile: Any, num_frames: int) -> None:
    assert set(profile) == {"type", "name", "unit", "startValue", "endValue", "samples", "weights"}
    assert (profile["type"], profile["unit"]) == ("sampled", "seconds")
    assert type(profile["name"]) is str
    assert len(profile["samples"]) == len(profile["weights"])
    assert all(0 <= index < num_frames for stack in profile["samples"] for index in stack)
    assert all(weight >= 0 for weight in profile["weights"])
    span = profile["endValue"] - profile["startValue"]
    assert span == pytest.approx(sum(profile["weights"]))


def named(file: Any, profile: Any) -> list[tuple[list[str], float]]:
    """The profile's stacks by the names of their frames, with their weights."""
    names = [frame["name"] for frame in file["shared"]["frames"]]
    stacks = [[names[index] for index in stack] for stack in profile["samples"]]
    return list(zip(stacks, profile["weights"], strict=True))


def test_a_capture_has_a_profile_for_each_role_and_each_thread() -> None:
    file = json.loads(json.dumps(speedscope_file("p1", [engine_samples()], "vllm-obs@1")))
    check_format(file)
    assert (file["name"], file["exporter"]) == ("p1", "vllm-obs@1")
    assert [profile["name"] for profile in file["profiles"]] == [
        "EngineCore",
        "EngineCore_DP0 (pid 7) · MainThread",
        "EngineCore_DP0 (pid 7) · engine input",
    ]
    frames = file["shared"]["frames"]
    assert frames[:4] == [
        {"name": frame.function, "file": frame.file, "line": frame.line}
        for frame in (MAIN, STEP, WAIT, STEP_LATER)
    ]
    assert {"name": "MainThread"} in frames


def test_a_threads_samples_are_in_the_order_of_time() -> None:
    file = speedscope_file("p1", [engine_samples()])
    main = file["profiles"][1]
    assert named(file, main) == [
        (["main", "EngineCore.step"], 0.02),
        (["main", "Queue.get"], 0.01),
        (["main", "EngineCore.step", "EngineCore.step"], 0.02),
    ]
    assert (main["startValue"], main["endValue"]) == (0, pytest.approx(0.05))


def test_ranks_of_one_role_are_summed_and_also_apart() -> None:
    sets = [engine_samples("Worker_TP0", 1), engine_samples("Worker_TP1", 2), engine_samples("Observer", 3)]
    file = speedscope_file("p1", sets)
    check_format(file)
    assert [profile["name"] for profile in file["profiles"]][:4] == [
        "Observer",
        "Worker",
        "Worker_TP0 (pid 1) · MainThread",
        "Worker_TP0 (pid 1) · engine input",
    ]
    assert len(file["profiles"]) == 2 + 6
    worker = Counter({tuple(stack): weight for stack, weight in named(file, file["profiles"][1])})
    assert worker == {
        ("engine input", "main", "Queue.get"): pytest.approx(0.1),
        ("MainThread", "main", "EngineCore.step"): pytest.approx(0.04),
        ("MainThread", "main", "Queue.get"): pytest.approx(0.02),
        ("MainThread", "main", "EngineCore.step", "EngineCore.step"): pytest.approx(0.04),
    }


def test_a_capture_without_samples_is_a_file_too() -> None:
    file = speedscope_file("p1", [])
    check_format(file)
    assert (file["profiles"], file["shared"]["frames"]) == ([], [])


def restless(num_runs: int) -> SampleSet:
    """A thread that was elsewhere at each sample."""
    runs = [StackRun(number % 2, 1, 0.01, 0.0, 0) for number in range(num_runs)]
    return engine_samples()._replace(
        frames=[Frame("a", "a.py", 1), Frame("b", "b.py", 1)],
        stacks=[[0], [0, 1]],
        threads=[ThreadSamples("MainThread", 1, runs)],
    )


def test_a_thread_for_which_there_is_no_room_is_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speedscope, "MAX_INDICES", 50)
    file = speedscope_file("p1", [restless(20), restless(1000)])
    check_format(file)
    assert [len(profile["samples"]) for profile in file["profiles"]] == [2, 20, 2]
    assert file["profiles"][2]["endValue"] == pytest.approx(10)


def test_the_number_of_profiles_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speedscope, "MAX_PROFILES", 5)
    file = speedscope_file("p1", [engine_samples(f"Worker_TP{rank}", rank) for rank in range(9)])
    check_format(file)
    assert len(file["profiles"]) == 5

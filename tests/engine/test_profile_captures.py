"""One process's part of a profile: one at a time, its begin and end recorded, never a failure of the process."""

import pytest

from vllm_obs.engine.errors import RequestError
from vllm_obs.engine.profile_captures import Capture, CaptureSite, ProcessCaptures
from vllm_obs.engine.profile_kinds import worker_kinds
from vllm_obs.engine.profile_order import (
    MAX_SECONDS,
    MAX_STEPS,
    OPERATORS,
    SAMPLES,
    CaptureEnd,
    ProfileOrder,
    check_order,
)
from vllm_obs.telemetry.recorder import MemoryRecorder
from vllm_obs.telemetry.records import ProfileBegun, ProfileEnded

SITE = CaptureSite("Worker_TP0", 42, 0)
ORDER = ProfileOrder("p", OPERATORS, "/tmp", 5.0, 100)


class FakeCapture:
    """Is over when it is told."""

    def __init__(self) -> None:
        self.end: CaptureEnd | None = None
        self.calls: list[str] = []

    def start(self) -> None:
        self.calls.append("start")

    def stop(self) -> None:
        self.calls.append("stop")
        self.end = CaptureEnd(3, 0, 10, 20, ["a.json"], "")


class Stage:
    """A process that knows one kind."""

    def __init__(self) -> None:
        self.recorder = MemoryRecorder()
        self.made: list[FakeCapture] = []
        self.captures = ProcessCaptures(SITE, self.recorder, {OPERATORS: self._make})

    def _make(self, order: ProfileOrder, site: CaptureSite) -> Capture:
        self.made.append(FakeCapture())
        return self.made[-1]


def test_begin_and_end_are_recorded_once() -> None:
    stage = Stage()
    assert stage.captures.obey(ORDER)
    assert stage.captures.obey(None, is_look=True)
    assert not stage.captures.obey(None)
    stage.captures.collect()
    begun, ended = stage.recorder.records
    assert isinstance(begun, ProfileBegun)
    assert begun == ProfileBegun("p", OPERATORS, "Worker_TP0", 42, 0, 100, 5.0, begun.begun_at)
    assert ended == ProfileEnded("p", OPERATORS, "Worker_TP0", 42, 0, 3, 0, 10, 20, ["a.json"], "")
    assert stage.made[0].calls == ["start", "stop"]


def test_a_second_one_waits_for_the_first() -> None:
    stage = Stage()
    stage.captures.start(ORDER)
    with pytest.raises(RequestError, match="the profile p is still under way"):
        stage.captures.start(ORDER._replace(profile="q"))
    stage.made[0].stop()
    stage.captures.start(ORDER._replace(profile="q"))
    assert len(stage.made) == 2


def test_a_kind_that_it_does_not_know_is_others_business() -> None:
    stage = Stage()
    assert not stage.captures.obey(ORDER._replace(kind=SAMPLES))
    assert list(stage.recorder.records) == []


def test_one_that_cannot_begin_is_recorded_and_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    recorder = MemoryRecorder()
    captures = ProcessCaptures(SITE, recorder, worker_kinds(object()))
    assert not captures.obey(ORDER)
    (ended,) = recorder.records
    assert isinstance(ended, ProfileEnded)
    assert ended.error.startswith(
        "a synthetic worker runs no model and has no operators to profile; --kind samples"
    )
    assert "the profile cannot be taken" in caplog.text


def test_a_rank_of_a_host_without_the_directory_says_so() -> None:
    stage = Stage()
    assert not stage.captures.obey(ORDER._replace(directory="/nowhere/profiles"))
    (ended,) = stage.recorder.records
    assert isinstance(ended, ProfileEnded)
    assert ended.error.endswith(" has no /nowhere/profiles: a profile has the ranks of the server's host only")
    assert stage.made == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"profile": "../x"}, "a profile's name"),
        ({"profile": ""}, "a profile's name"),
        ({"kind": "nonsense"}, "kind must be one of operators, samples"),
        ({"seconds": 0.0}, f"seconds is 0; it must be above 0 and at most {MAX_SECONDS:g}"),
        ({"seconds": float("nan")}, "seconds is nan"),
        ({"steps": MAX_STEPS + 1}, f"steps is {MAX_STEPS + 1}; it must be between 1 and {MAX_STEPS}"),
        ({"delay_steps": -1}, "delay_steps is -1"),
        ({"directory": "here"}, "must be an absolute path"),
        ({"options": ("gpu",)}, "options are of shapes"),
    ],
)
def test_an_order_out_of_bounds_is_refused(change: dict[str, object], message: str) -> None:
    check_order(ORDER)
    with pytest.raises(RequestError, match=message):
        check_order(ORDER._replace(**change))  # type: ignore[arg-type]

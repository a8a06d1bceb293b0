"""Deaths, stalls and failed steps make one incident each, with what followed in it, once and for all."""

import contextlib
import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from broken_run import NUM_STEPS, PID, broken_run
from fact_stream import ENGINE

from vllm_obs.telemetry.death_watch import DeathWatch
from vllm_obs.telemetry.flight_recorder import FlightRecorder
from vllm_obs.telemetry.incident import GRACE_NS, STEP_QUIET_NS, IncidentFiler, IncidentPorts
from vllm_obs.telemetry.incident_backlog import MAX_WAITING, RETRY_NS
from vllm_obs.telemetry.incident_reader import read_incident
from vllm_obs.telemetry.incident_shelf import IncidentShelf
from vllm_obs.telemetry.incident_story import Scene, Story, file_story
from vllm_obs.telemetry.observer import Observer
from vllm_obs.telemetry.records import (
    IncidentFiled,
    ProcessExited,
    Record,
    StallBegun,
    StallEnded,
    StepFailed,
)
from vllm_obs.telemetry.replay import open_replay
from vllm_obs.telemetry.ring_tail import RingTail
from vllm_obs.telemetry.run_state import RunState
from vllm_obs.telemetry.view import Source

S = 10**9
KILLED = ProcessExited("EngineCore_DP0", PID, -9, 0)
STALL = StallBegun("0", "Worker_TP1", 77, 1, "executing", 9, "T", "Worker_TP1 is stopped", 5 * S, 15 * S)
FAILED = StepFailed(9, "RuntimeError: a prompt", 20 * S, ["r-1", "r-2"])
ENDED = StallEnded("0", "Worker_TP1", 77, 5 * S, 20 * S + S // 10)
API = Source("APIServer_0", PID, 1, "")
NO_ROOM = OSError(errno.ENOSPC, "No space left on device")


class Desk:
    """A filer over a run directory, its Observer, and what it recorded."""

    def __init__(self, run_dir: Path) -> None:
        self.recorded: list[Record] = []
        self.shelf = IncidentShelf(run_dir)
        self.observer = Observer("run", run_dir)
        self.observer.tail = RingTail(run_dir)
        self.verdict: dict[str, Any] = {"word": "kv_blocks", "says": "too few blocks"}
        self.broken: Exception | None = None
        ports = IncidentPorts(self._scene, self.recorded.append, self.observer.drain_slice, self._write)
        self.filer = IncidentFiler(self.shelf, DeathWatch(run_dir), ports)
        self.observer.add_views([self.filer])

    def _scene(self, rings: Any) -> Scene:
        config = {"model_name": "tiny"}
        return Scene(
            self.observer, self.shelf.path.parent, rings, config, "1.2.3", verdict=lambda at: self.verdict
        )

    def _write(self, shelf: IncidentShelf, story: Story, scene: Scene) -> str:
        if self.broken is not None:
            raise self.broken
        return file_story(shelf, story, scene)

    def drain(self) -> None:
        while not self.observer.drain_slice():
            pass

    def filed(self) -> list[dict[str, Any]]:
        found = [read_incident(self.shelf, name) for name in self.shelf.names()]
        return [each for each in found if each is not None]

    def close(self) -> None:
        self.filer.finish(is_owner_gone=False)
        self.observer.close()


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    run_dir = tmp_path / "20260101-000000-7"
    run_dir.mkdir()
    return run_dir


@pytest.fixture
def desk(run_dir: Path) -> Iterator[Desk]:
    desk = Desk(run_dir)
    yield desk
    desk.close()


def test_a_death_is_filed_after_the_grace_with_all_that_was_known(desk: Desk, run_dir: Path) -> None:
    died_at = broken_run(run_dir, [KILLED])
    (run_dir / "EngineCore_DP0.log").write_text("last words\n")
    desk.drain()
    desk.filer.look(died_at)
    desk.filer.look(died_at + GRACE_NS - 1)
    assert desk.filed() == []
    desk.filer.look(died_at + GRACE_NS)
    (content,) = desk.filed()
    incident = content["incident"]
    assert incident["says"] == (
        f"EngineCore_DP0 (pid {PID}) was killed by SIGKILL in step 123 (executing). 2 requests were open."
    )
    assert (incident["verdict"], incident["config"]) == (desk.verdict, {"model_name": "tiny"})
    assert incident["versions"]["vllm_obs"] == "1.2.3"
    assert len(content["steps"]) == NUM_STEPS + 3
    assert [row["request_id"] for row in content["open_requests"]] == ["open-1-0-0", "open-2-0-0"]
    assert content["logs"] == {"EngineCore_DP0": ["last words"]}
    assert incident["files"] == sorted(
        str(path.relative_to(content["folder"])) for path in Path(content["folder"]).rglob("*") if path.is_file()
    )
    (filed,) = desk.recorded
    assert isinstance(filed, IncidentFiled)
    assert filed[:5] == (incident["name"], "killed", "EngineCore_DP0", PID, incident["says"])
    assert filed.happened_at == died_at
    desk.filer.look(died_at + 9 * S)
    assert len(desk.filed()) == 1


def test_its_recording_is_opened_by_a_replay(desk: Desk, run_dir: Path) -> None:
    broken_run(run_dir, [KILLED])
    desk.drain()
    desk.filer.look(0, is_last=True)
    (content,) = desk.filed()
    service = open_replay(Path(content["folder"]) / "recording", "127.0.0.1", 0)
    state = service.observer.state
    assert [engine.steps.last.step for engine in state.past_engines if engine.steps.last] == [NUM_STEPS + 3]
    assert service.observer.caveat == ""
    service.observer.close()


def test_an_observer_that_was_just_started_again_reads_the_last_steps_from_the_rings(run_dir: Path) -> None:
    broken_run(run_dir, [KILLED])
    desk = Desk(run_dir)
    desk.drain()
    state, desk.observer.state = desk.observer.state, RunState()
    desk.observer.cost.resumed_at = 1
    desk.filer.look(0, is_last=True)
    (content,) = desk.filed()
    assert len(content["steps"]) == NUM_STEPS + 3
    desk.observer.state = state
    desk.close()


def test_what_follows_within_the_grace_is_in_the_same_incident(desk: Desk, run_dir: Path) -> None:
    worker = ProcessExited("Worker_TP1", 77, -9, 0)
    died_at = broken_run(run_dir, [KILLED._replace(exit_code=70)])
    desk.filer.record(ENGINE, worker._replace(exited_at=died_at - 5))
    desk.filer.look(died_at)
    desk.drain()
    desk.filer.look(died_at + GRACE_NS)
    (content,) = desk.filed()
    assert content["incident"]["cause"] == "killed"
    assert content["incident"]["culprit"]["rank"] == 1
    assert [each["role"] for each in content["incident"]["consequences"]] == ["EngineCore_DP0"]


def test_engines_that_die_one_after_the_other_within_the_grace_get_an_incident_each(
    desk: Desk, run_dir: Path
) -> None:
    died_at = broken_run(run_dir, [KILLED])
    desk.drain()
    desk.filer.record(API, KILLED._replace(pid=PID + 1, exited_at=died_at + S // 2))
    desk.filer.look(died_at + S)
    desk.filer.look(died_at + S + GRACE_NS)
    found = sorted(desk.filed(), key=lambda each: each["incident"]["happened"]["monotonic_at"])
    assert [each["incident"]["culprit"]["pid"] for each in found] == [PID, PID + 1]
    assert [each["incident"]["happened"]["monotonic_at"] for each in found] == [died_at, died_at + S // 2]
    assert [each["incident"]["consequences"] for each in found] == [[], []]
    assert [len(each["open_requests"]) for each in found] == [2, 0]


def test_engines_that_die_at_the_same_time_get_an_incident_each(desk: Desk, run_dir: Path) -> None:
    died_at = broken_run(run_dir, [KILLED])
    desk.drain()
    desk.filer.record(API, KILLED._replace(role="EngineCore_DP1", pid=PID + 1, exited_at=died_at))
    desk.filer.look(died_at, is_last=True)
    found = {each["incident"]["engine"]: each for each in desk.filed()}
    assert {engine: each["incident"]["culprit"]["role"] for engine, each in found.items()} == {
        "0": "EngineCore_DP0",
        "1": "EngineCore_DP1",
    }
    assert [len(found[engine]["steps"]) > 0 for engine in ("0", "1")] == [True, False]


def test_steps_that_fail_in_two_engines_are_an_incident_each(desk: Desk) -> None:
    desk.filer.record(ENGINE, FAILED)
    desk.filer.record(ENGINE._replace(engine="1", generation=ENGINE.generation + 1), FAILED)
    desk.filer.look(0, is_last=True)
    assert sorted(each["incident"]["engine"] for each in desk.filed()) == ["0", "1"]


def test_the_last_look_waits_for_nothing_and_reads_what_a_gone_owner_left(run_dir: Path) -> None:
    broken_run(run_dir, [], is_api_dead=True)
    desk = Desk(run_dir)
    desk.filer.finish(is_owner_gone=True)
    (content,) = desk.filed()
    assert content["incident"]["culprit"]["role"] == "APIServer_0"
    assert [row["stage"] for row in content["open_requests"]] == ["decode", "submit"]
    assert all(sum(row["stage_ns"].values()) == row["age_ns"] for row in content["open_requests"])
    assert len(content["steps"]) == NUM_STEPS + 3
    desk.observer.close()


def test_an_end_that_was_ordered_is_none(desk: Desk, run_dir: Path) -> None:
    broken_run(run_dir, [KILLED._replace(was_told=True)])
    desk.filer.look(0)
    desk.drain()
    desk.filer.look(99 * S, is_last=True)
    assert desk.filed() == []


def test_an_observer_that_is_started_again_files_nothing_twice(desk: Desk, run_dir: Path) -> None:
    broken_run(run_dir, [KILLED])
    desk.drain()
    desk.filer.look(0, is_last=True)
    desk.filer.stall(STALL, {})
    second = Desk(run_dir)
    second.drain()
    second.filer.stall(STALL, {})
    second.filer.look(0, is_last=True)
    assert len(second.filed()) == 2
    second.close()


def test_a_stall_is_filed_at_once_with_its_stacks(desk: Desk) -> None:
    desk.filer.stall(STALL, {"Worker_TP1": 'File "x.py", line 1 in wait'})
    (content,) = desk.filed()
    incident = content["incident"]
    assert (incident["cause"], incident["says"]) == ("stalled", "Worker_TP1 is stopped.")
    assert incident["culprit"]["stall"] == STALL._asdict()
    assert content["stacks"] == {"Worker_TP1": 'File "x.py", line 1 in wait'}
    assert [event["says"] for event in incident["timeline"]] == [
        "Worker_TP1 moved for the last time",
        "the watchdog noticed",
    ]


def test_a_stall_that_is_over_is_told_in_the_past_tense_wherever_it_is_told(desk: Desk, run_dir: Path) -> None:
    desk.filer.stall(STALL, {})
    (content,) = desk.filed()
    assert content["incident"]["helps"] == [
        "kill -CONT 77 lets it go on; a restart loses nothing: no request is open."
    ]
    with contextlib.closing(FlightRecorder(run_dir / "Worker_TP1.ring", "Worker_TP1", 65536)):
        pid = os.getpid()
        desk.filer.record(API, ENDED._replace(pid=1))  # another's
        desk.filer.stall(STALL._replace(pid=pid), {})
        desk.filer.record(API, ENDED._replace(pid=pid))
    desk.filer.record(API, ENDED)
    first, second = (content["incident"] for content in desk.filed())
    assert first["says"] == (
        "Engine 0 stood still for 15.1 s, until its process ended: Worker_TP1 (rank 1, pid 77) was stopped by a "
        "signal, last seen executing in step 9."
    )
    assert second["says"].startswith("Engine 0 stood still for 15.1 s and moved again: Worker_TP1 (rank 1")
    assert second["ended"] == {
        "monotonic_at": ENDED.ended_at,
        "wall_at": second["happened"]["wall_at"] + ENDED.ended_at - STALL.noticed_at,
        "says": "moved again after 15.1 s",
    }
    assert second["timeline"][-1] == {"at": ENDED.ended_at, "says": "the stall was over: moved again after 15.1 s"}
    assert second["helps"] == []
    says = {filed.incident: filed.says for filed in desk.recorded if isinstance(filed, IncidentFiled)}
    assert says == {first["name"]: first["says"], second["name"]: second["says"]}
    desk.filer.record(API, ENDED)
    assert len(desk.recorded) == 4


def test_a_stall_that_is_over_before_its_stacks_are_taken_is_filed_as_over(desk: Desk) -> None:
    desk.filer.record(API, ENDED)
    desk.filer.stall(STALL, {})
    assert "stood still for 15.1 s" in desk.filed()[0]["incident"]["says"]


def test_an_observer_that_is_started_again_learns_the_end_of_an_earlier_ones_stall(
    desk: Desk, run_dir: Path
) -> None:
    desk.filer.stall(STALL, {})
    second = Desk(run_dir)
    second.filer.record(API, ENDED)
    assert "stood still for 15.1 s" in desk.filed()[0]["incident"]["says"]
    second.close()


def test_what_stands_still_when_the_run_ends_did_so_until_then(run_dir: Path) -> None:
    desk = Desk(run_dir)
    desk.filer.stall(STALL, {})
    desk.close()
    assert "until the run ended: Worker_TP1" in desk.filed()[0]["incident"]["says"]


def test_what_a_full_disk_has_no_room_for_is_kept_and_written_when_it_has(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.broken = NO_ROOM
    desk.filer.stall(STALL, {"Worker_TP1": "File"})
    (record,) = caplog.records
    assert record.message.endswith(
        "-stalled-Worker_TP1: Worker_TP1 is stopped. (it cannot be written: No space left on device; it is kept "
        "in memory until that is possible)"
    )
    desk.filer.look(99 * S)
    assert desk.filed() == []
    desk.filer.record(API, ENDED)
    desk.broken = None
    desk.filer.look(99 * S + RETRY_NS - 1)
    assert desk.filed() == []
    desk.filer.look(99 * S + RETRY_NS)
    (content,) = desk.filed()
    assert "stood still for 15.1 s" in content["incident"]["says"]
    assert content["stacks"] == {"Worker_TP1": "File"}
    assert [bool(filed.filed_at) for filed in desk.recorded if isinstance(filed, IncidentFiled)] == [
        False,
        False,
        True,
    ]


def test_of_what_waits_for_room_the_first_are_kept(desk: Desk) -> None:
    desk.broken = NO_ROOM
    for number in range(MAX_WAITING + 5):
        desk.filer.stall(STALL._replace(stuck_at=number), {})
    assert len(desk.filer._backlog) == MAX_WAITING
    desk.broken = None
    desk.filer.finish(is_owner_gone=False)
    assert [content["incident"]["culprit"]["stall"]["stuck_at"] for content in desk.filed()] == list(
        range(MAX_WAITING)
    )


def test_steps_that_fail_alike_within_a_minute_are_one_incident(desk: Desk) -> None:
    for number in range(3):
        desk.filer.record(ENGINE, FAILED._replace(step=9 + number))
    desk.filer.look(0, is_last=True)
    desk.filer.record(ENGINE, FAILED._replace(step=50, failed_at=FAILED.failed_at + STEP_QUIET_NS - 1))
    desk.filer.look(0, is_last=True)
    (content,) = desk.filed()
    incident = content["incident"]
    assert incident["cause"] == "step_failed"
    assert incident["says"] == (
        "Step 9 of engine 0 failed with RuntimeError, and 2 steps after it; 6 requests ended with an error, "
        "the engine goes on."
    )
    assert [step["step"] for step in incident["failed_steps"]] == [9, 10, 11]
    desk.filer.record(ENGINE, FAILED._replace(step=60, failed_at=FAILED.failed_at + STEP_QUIET_NS))
    desk.filer.record(ENGINE, FAILED._replace(step=61, error="MemoryError: "))
    desk.filer.look(0, is_last=True)
    assert len(desk.filed()) == 2


def test_steps_that_failed_before_their_engine_died_are_in_its_incident(desk: Desk, run_dir: Path) -> None:
    died_at = broken_run(run_dir, [KILLED._replace(exit_code=70)])
    core = Source("EngineCore_DP0", PID, 3, "0")
    desk.filer.record(core, FAILED._replace(failed_at=died_at - 10))
    desk.drain()
    desk.filer.look(0, is_last=True)
    (content,) = desk.filed()
    incident = content["incident"]
    assert incident["cause"] == "exception"
    assert f"gave up with exit code 70 after step {FAILED.step} had failed with RuntimeError." in incident["says"]
    assert incident["happened"]["monotonic_at"] == died_at - 10


def test_nothing_that_goes_wrong_in_filing_reaches_the_observer(
    desk: Desk, run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    desk.broken = RuntimeError("a defect")
    for number in range(3):
        desk.filer.stall(STALL._replace(stuck_at=number), {})
    assert (desk.filer.num_failures, len(caplog.records)) == (3, 1)
    assert desk.recorded == []
    desk.broken = None

    def judge(at: int) -> dict[str, Any]:
        raise RuntimeError("no verdict")

    desk.verdict = {}
    desk._scene = lambda rings: Scene(desk.observer, run_dir, rings, verdict=judge)  # type: ignore[method-assign]
    desk.filer.stall(STALL, {})
    assert desk.filed()[0]["incident"]["verdict"] == {}


def test_no_words_of_a_request_are_in_any_file(desk: Desk, run_dir: Path) -> None:
    broken_run(run_dir, [KILLED])
    desk.drain()
    desk.filer.record(ENGINE, FAILED)
    desk.filer.look(0, is_last=True)
    for content in desk.filed():
        assert "a prompt" not in json.dumps(content)


def test_what_it_remembers_is_bounded(desk: Desk) -> None:
    for number in range(2000):
        desk.filer.record(API, ProcessExited("Worker_TP0", number, 78, 1))
        desk.filer.record(API, ProcessExited("Worker_TP1", number, 0, 1, was_told=True))
        desk.filer.record(ENGINE, FAILED._replace(step=number, failed_at=number * STEP_QUIET_NS))
    filer = desk.filer
    assert (len(filer._ends), len(filer._failed), len(filer._known)) == (64, 64, 1024)
    assert len(filer._failed_before) <= 64
    filer._failed.clear()

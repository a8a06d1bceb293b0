"""`vllm-obs incident` tells what went wrong in the last runs, and the next start mentions it once."""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from broken_run import NUM_STEPS, PID, broken_run
from scripted_run import ScriptedRun

from vllm_obs.cli.incident_notice import incident_notice
from vllm_obs.cli.incident_report import age
from vllm_obs.cli.main import main
from vllm_obs.telemetry.incident_offline import tell_unfiled, unfiled_incident
from vllm_obs.telemetry.incident_shelf import IncidentShelf
from vllm_obs.telemetry.records import IncidentFiled, ProcessExited, StallBegun

KILLED = ProcessExited("EngineCore_DP0", PID, -9, 0)
SAYS = f"EngineCore_DP0 (pid {PID}) was killed by SIGKILL in step 123 (executing). 2 requests were open."
FIRST, SECOND = "20260101-000000-7", "20260101-000001-8"
STALLED = "20260101-000000-stalled-EngineCore_DP0"
STALL = StallBegun("0", "EngineCore_DP0", 7, -1, "executing", 9, "T", "EngineCore_DP0 is stopped.", 5, 15)


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    base = tmp_path / "runs"
    base.mkdir()
    monkeypatch.setenv("VLLM_OBS_RUN_DIR", str(base))
    return base


def file_it(run: Path) -> str:
    """As an Observer would have filed what the run came to; the incident's name."""
    unfiled = unfiled_incident(run)
    assert unfiled is not None
    told = tell_unfiled(unfiled)
    document = told["incident"] | {"is_reconstructed": False, "files": ["recording"]}
    files = {
        "incident.json": json.dumps(document).encode(),
        "processes.json": json.dumps(told["processes"]).encode(),
    }
    for name, rows in (("steps.jsonl", told["steps"]), ("requests.jsonl", told["open_requests"])):
        files[name] = "".join(json.dumps(row) + "\n" for row in rows).encode()
    files["stacks/EngineCore_DP0.txt"] = (
        b'Thread 1:\n  File "a.py", line 1 in wait\n  File "b.py", line 2 in run\n'
    )
    files["logs/EngineCore_DP0.log"] = b"a line of the log\n"
    return IncidentShelf(run).add(document["name"], files)


@contextlib.contextmanager
def locked(run: Path) -> Iterator[None]:
    """As a run is that lives."""
    lock_fd = os.open(run / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock_fd)


def test_without_any_it_says_where_it_looked(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["incident"]) == 0
    assert f"no incident is known: {base} holds no runs" in capsys.readouterr().out
    assert main(["incident", "show"]) == 1
    assert f"no incident is known: {base} holds no runs" in capsys.readouterr().err
    assert main(["incident", "--run", str(base)]) == 78
    assert f"{base} holds no run: no flight recorder" in capsys.readouterr().err
    with ScriptedRun(base) as run:
        run.start()
    (base / FIRST).mkdir()
    shutil.move(run.api.path, base / FIRST)
    assert main(["incident"]) == 0
    assert f"no incident is known under {base}: no process of the last runs has died" in capsys.readouterr().out


def test_a_place_that_is_not_there_is_said_to_hold_no_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VLLM_OBS_RUN_DIR", "/proc/nothing")
    assert main(["incident"]) == 0
    assert "/proc/nothing is not there, so it holds no runs" in capsys.readouterr().out


@pytest.mark.parametrize("is_filed", [True, False])
def test_an_incident_is_listed_and_shown(base: Path, is_filed: bool, capsys: pytest.CaptureFixture[str]) -> None:
    broken_run(base / FIRST, [KILLED])
    if is_filed:
        file_it(base / FIRST)
    assert main(["incident"]) == 0
    listed = capsys.readouterr().out
    assert SAYS in listed
    assert f"run {FIRST}" in listed
    name = listed.split()[0]
    assert main(["incident", "show", name[:-3]]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(name)
    assert SAYS in shown
    assert ("put together from the flight recorders" in shown) == (not is_filed)
    for words in (
        "Open requests (2: 1 in decode, 1 in queue)",
        "open-1-0-0",
        f"Last steps ({NUM_STEPS + 3} are kept)",
        "of the last 100 answered: median 10.0 ms, slowest 10.0 ms",
        "+0.000 s  EngineCore_DP0",
        str(base / FIRST),
    ):
        assert words in shown
    assert ('  File "a.py", line 1 in wait' in shown) == is_filed
    assert ("a line of the log" in shown) == is_filed


def test_as_json_it_is_all_there(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken_run(base / FIRST, [KILLED])
    assert main(["incident", "list", "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert (listed["says"], listed["directory"]) == (SAYS, str(base / FIRST))
    assert main(["incident", "show", "latest", "--json", "--run", str(base / FIRST)]) == 0
    assert len(json.loads(capsys.readouterr().out)["steps"]) == NUM_STEPS + 3


def test_the_newest_is_first_and_a_run_that_lives_or_ended_in_order_has_none(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken_run(base / FIRST, [KILLED])
    broken_run(base / SECOND, [KILLED._replace(exit_code=-15)])
    (base / "20260101-000002-9").mkdir()
    with ScriptedRun(base / "20260101-000002-9") as run:
        run.start()
        assert main(["incident", "list", "--json"]) == 0
    assert [each["run"] for each in json.loads(capsys.readouterr().out)] == [SECOND, FIRST]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["show", "nothing"], 1), (["burn"], 78), (["list", "x"], 78), (["--run", "/nowhere"], 78)],
)
def test_what_cannot_be_is_said_in_a_line(
    base: Path, arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    broken_run(base / FIRST, [KILLED])
    assert main(["incident", *arguments]) == code
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_damaged_incident_is_said_to_be_and_a_damaged_ring_passed_over(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken_run(base / FIRST, [KILLED])
    IncidentShelf(base / FIRST).add("20260101-000000-killed-Observer", {"incident.json": b'{"name": 1}'})
    (base / SECOND).mkdir()
    (base / SECOND / "EngineCore_DP0.ring").write_bytes(b"x" * 9000)
    assert main(["incident", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [each["says"] for each in listed] == [SAYS, "What happened cannot be read any more."]
    assert main(["incident", "show", "20260101-000000-killed-Observer"]) == 0
    assert "This folder is damaged" in capsys.readouterr().out


@pytest.mark.parametrize(
    "part", ["name", "says", "happened", "culprit", "timeline", "requests", "versions", "files"]
)
@pytest.mark.parametrize("value", [None, 7, "x", [1], {"x": 1}])
def test_of_a_damaged_document_what_can_be_read_is_shown(
    base: Path, part: str, value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    broken_run(base / FIRST, [KILLED])
    name = file_it(base / FIRST)
    path = base / FIRST / "incidents" / name / "incident.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {part: value}))
    assert main(["incident"]) == 0
    assert main(["incident", "show", name]) == 0
    assert f"Last steps ({NUM_STEPS + 3} are kept)" in capsys.readouterr().out


def test_rows_that_are_damaged_are_left_out_and_counted(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken_run(base / FIRST, [KILLED])
    folder = base / FIRST / "incidents" / file_it(base / FIRST)
    first, *rows = (folder / "steps.jsonl").read_text().splitlines()
    damaged = {key: value for key, value in json.loads(first).items() if key != "updated_at"}
    (folder / "steps.jsonl").write_text("\n".join([json.dumps(damaged), *rows]))
    (folder / "processes.json").write_text('[{"role": 1}]')
    document = json.loads((folder / "incident.json").read_text()) | {"says": None}
    (folder / "incident.json").write_text(json.dumps(document))
    assert main(["incident", "show"]) == 0
    shown = capsys.readouterr().out
    assert (
        f"says in incident.json, 1 of {NUM_STEPS + 3} rows of steps.jsonl, 1 of 1 rows of processes.json." in shown
    )
    assert f"Last steps ({NUM_STEPS + 2} are kept)" in shown


def stalled(run: Path) -> None:
    """Turns what the run left into a stall of its engine, which nobody saw end."""
    folder = run / "incidents" / file_it(run)
    document = json.loads((folder / "incident.json").read_text())
    stall = STALL._asdict()
    document |= {"cause": "stalled", "says": STALL.says, "keys": [], "helps": ["kill -CONT 7 …"], "name": STALLED}
    document["culprit"] |= {"role": STALL.role, "pid": STALL.pid, "stall": stall}
    document["requests"] = {"num_open": 2, "by_stage": {}}
    (folder / "incident.json").write_text(json.dumps(document))
    rows = [
        {**row, "state": "stopped", "role": STALL.role, "pid": 7}
        for row in json.loads((folder / "processes.json").read_text())[:1]
    ]
    (folder / "processes.json").write_text(json.dumps(rows))
    folder.rename(folder.with_name(STALLED))


def test_the_report_of_a_stopped_process_marks_it_and_names_what_to_do(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken_run(base / FIRST, [KILLED])
    stalled(base / FIRST)
    long_stage = {"stage": "submit", "reason": "step_in_progress"}
    requests = base / FIRST / "incidents" / STALLED / "requests.jsonl"
    rows = [json.loads(line) | long_stage for line in requests.read_text().splitlines()]
    requests.write_text("\n".join(map(json.dumps, rows)))
    with locked(base / FIRST):
        assert main(["incident", "show", STALLED]) == 0
        shown = capsys.readouterr().out
    assert f"{STALL.says}\nkill -CONT 7 …\n" in shown
    assert "  > EngineCore_DP0          7 stopped" in shown
    assert "submit (step_in_progress) " in shown
    # The run is dead: it stands still no more.
    assert main(["incident", "show", STALLED]) == 0
    shown = capsys.readouterr().out
    assert "Engine 0 stood still, until the run ended: EngineCore_DP0 (pid 7) was stopped by a signal" in shown
    assert "kill -CONT" not in shown
    assert "stood still, until the run ended" in (incident_notice() or "")


def test_what_had_no_room_on_the_disk_is_told_from_the_ring(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (base / FIRST).mkdir()
    filed = IncidentFiled(STALLED, "stalled", "EngineCore_DP0", 7, STALL.says, 5, 0)
    with ScriptedRun(base / FIRST) as run:
        run.start()
        run.api.record(filed._replace(incident=f"{STALLED}-2"))
        run.api.record(filed._replace(incident=f"{STALLED}-2", filed_at=9))
        run.api.record(filed)
        with locked(base / FIRST):
            assert main(["incident"]) == 0
            listed = capsys.readouterr().out
            assert main(["incident", "show"]) == 0
    assert listed.count("stalled") == 2
    assert "; not written down yet)" in listed
    assert "It could not be written down (is the disk full?)" in capsys.readouterr().out


class TestNotice:
    """What a start says of the last run."""

    def test_an_incident_is_mentioned_once(self, base: Path) -> None:
        broken_run(base / FIRST, [KILLED])
        name = file_it(base / FIRST)
        assert incident_notice() == f"The last run left an incident: {SAYS} See: vllm-obs incident show {name}"
        assert incident_notice() is None

    def test_a_root_that_vanished_is_mentioned_though_nobody_filed_it(self, base: Path) -> None:
        broken_run(base / FIRST, [], is_api_dead=True)
        assert "did not end in order" in (incident_notice() or "")
        assert incident_notice() is None

    def test_only_the_newest_dead_run_counts(self, base: Path) -> None:
        broken_run(base / FIRST, [KILLED])
        file_it(base / FIRST)
        (base / SECOND).mkdir()
        with ScriptedRun(base / SECOND) as run:
            run.start()
        assert incident_notice() is None

    def test_without_runs_there_is_nothing_to_say(self, base: Path) -> None:
        assert incident_notice() is None
        shutil.rmtree(base)
        assert incident_notice() is None


def test_ages() -> None:
    assert [age(seconds) for seconds in (-1, 59, 300, 9000, 200_000)] == ["0 s", "59 s", "5 min", "2 h", "2 days"]

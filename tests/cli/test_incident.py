"""`vllm-obs incident` tells what went wrong in the last runs, and the next start mentions it once."""

import json
import shutil
from pathlib import Path

import pytest
from broken_run import NUM_STEPS, PID, broken_run
from scripted_run import ScriptedRun

from vllm_obs.cli.incident_notice import incident_notice
from vllm_obs.cli.incident_report import age
from vllm_obs.cli.main import main
from vllm_obs.telemetry.incident_offline import tell_unfiled, unfiled_incident
from vllm_obs.telemetry.incident_shelf import IncidentShelf
from vllm_obs.telemetry.records import ProcessExited

KILLED = ProcessExited("EngineCore_DP0", PID, -9, 0)
SAYS = f"EngineCore_DP0 (pid {PID}) was killed by SIGKILL in step 123 (executing). 2 requests were open."
FIRST, SECOND = "20260101-000000-7", "20260101-000001-8"


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


def test_without_any_it_says_where_it_looked(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["incident"]) == 0
    assert f"no incident is known under {base}" in capsys.readouterr().out
    assert main(["incident", "show"]) == 1
    assert f"no incident is known under {base}" in capsys.readouterr().err


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


def test_a_damaged_incident_and_a_damaged_ring_are_passed_over(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken_run(base / FIRST, [KILLED])
    IncidentShelf(base / FIRST).add("20260101-000000-killed-Observer", {"incident.json": b'{"name": 1}'})
    (base / SECOND).mkdir()
    (base / SECOND / "EngineCore_DP0.ring").write_bytes(b"x" * 9000)
    assert main(["incident", "list", "--json"]) == 0
    assert [each["says"] for each in json.loads(capsys.readouterr().out)] == [SAYS]


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

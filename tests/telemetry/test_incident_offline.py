"""A run that died with nobody left to write it down is told from its rings."""

from pathlib import Path

import pytest
from broken_run import NUM_STEPS, PID, broken_run
from scripted_run import ScriptedRun

from vllm_obs.telemetry.incident_offline import tell_unfiled, unfiled_incident
from vllm_obs.telemetry.incident_shelf import IncidentShelf
from vllm_obs.telemetry.records import ProcessExited

KILLED = ProcessExited("EngineCore_DP0", PID, -9, 0)


def test_a_killed_engine_is_told_with_its_steps_and_open_requests(tmp_path: Path) -> None:
    died_at = broken_run(tmp_path / "run", [KILLED])
    unfiled = unfiled_incident(tmp_path / "run")
    assert unfiled is not None
    told = tell_unfiled(unfiled)
    incident = told["incident"]
    assert incident["says"] == (
        f"EngineCore_DP0 (pid {PID}) was killed by SIGKILL in step 123 (executing). 2 requests were open."
    )
    assert (incident["cause"], incident["happened"]["monotonic_at"]) == ("killed", died_at)
    assert incident["is_reconstructed"]
    assert len(told["steps"]) == NUM_STEPS + 3
    assert [(row["request_id"], row["stage"]) for row in told["open_requests"]] == [
        ("open-1-0-0", "decode"),
        ("open-2-0-0", "queue"),
    ]
    assert all(sum(row["stage_ns"].values()) == row["age_ns"] for row in told["open_requests"])
    assert [(row["role"], row["state"], row["exit_code"]) for row in told["processes"]] == [
        ("APIServer_0", "ended", None),
        ("EngineCore_DP0", "died", -9),
    ]


def test_a_root_that_is_gone_is_inferred_and_took_the_engine_along(tmp_path: Path) -> None:
    broken_run(tmp_path / "run", [], is_api_dead=True)
    unfiled = unfiled_incident(tmp_path / "run")
    assert unfiled is not None
    incident = tell_unfiled(unfiled)["incident"]
    assert incident["culprit"]["is_inferred"]
    assert incident["says"] == (
        f"APIServer_0 (pid {PID}) was gone at once while it waited for work, by SIGKILL or alike "
        "(inferred: nothing else leaves no trace). EngineCore_DP0 ended with it. 2 requests were open."
    )


def test_what_was_filed_is_not_told_again(tmp_path: Path) -> None:
    broken_run(tmp_path / "run", [KILLED])
    document = f'{{"keys": ["end EngineCore_DP0 {PID}"]}}'.encode()
    IncidentShelf(tmp_path / "run").add("20260101-000000-killed-EngineCore_DP0", {"incident.json": document})
    assert unfiled_incident(tmp_path / "run") is None


@pytest.mark.parametrize("is_told", [True, False])
def test_a_run_that_ended_in_order_has_none(tmp_path: Path, is_told: bool) -> None:
    with ScriptedRun(tmp_path) as run:
        run.start()
        run.serve("done")
        if is_told:
            run.api.record(KILLED._replace(was_told=True))
    assert unfiled_incident(tmp_path) is None


def test_a_directory_without_rings_has_none(tmp_path: Path) -> None:
    (tmp_path / "x.ring").write_bytes(b"no ring")
    assert unfiled_incident(tmp_path) is None

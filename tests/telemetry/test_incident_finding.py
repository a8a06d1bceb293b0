"""Which engine an incident is about, by who ended, stood still or failed in it."""

import pytest

from vllm_obs.telemetry.death_watch import End
from vllm_obs.telemetry.incident_finding import FailedStep, Finding
from vllm_obs.telemetry.records import StallBegun, StepFailed
from vllm_obs.telemetry.view import Source

CORE = End("EngineCore_DP1", 2, -9, 100, is_recorded=True)
WORKER = End("Worker_DP1_TP0_PP0", 3, None, 100)
OTHER = End("EngineCore_DP0", 4, -9, 100, is_recorded=True)
SERVER = End("APIServer_1", 5, -9, 100, is_recorded=True)
ROOT = End("Launcher", 6, None, 100)
OBSERVER = End("Observer", 7, -9, 100, is_recorded=True)
STALL = StallBegun("1", "Worker_DP1_TP0_PP0", 3, 0, "executing", 3, "T", "", 1, 2)
FAILED = FailedStep(Source("EngineCore_DP1", 2, 1, "1"), StepFailed(3, "RuntimeError: x", 9, ["a"]))


def of_ends(*ends: End) -> Finding:
    return Finding("killed", ends[0].role, ends[0].pid, 100, end=ends[0], others=list(ends[1:]))


@pytest.mark.parametrize(
    ("finding", "engine", "is_of_servers"),
    [
        (of_ends(CORE), "1", False),
        (of_ends(WORKER, CORE, OBSERVER), "1", False),
        (of_ends(CORE, OTHER), "", False),
        (of_ends(ROOT, CORE), "", False),
        (of_ends(SERVER), "", True),
        (of_ends(SERVER._replace(is_recorded=False), CORE), "", False),
        (of_ends(OBSERVER), "", False),
        (Finding("stalled", STALL.role, STALL.pid, 2, stall=STALL), "1", False),
        (Finding("stalled", "Launcher", 6, 2, stall=STALL._replace(engine="", role="Launcher")), "", False),
        (Finding("step_failed", "EngineCore_DP1", 2, 9, failed=[FAILED]), "1", False),
    ],
)
def test_the_engine_of_an_incident(finding: Finding, engine: str, is_of_servers: bool) -> None:
    assert (finding.engine, finding.is_of_servers) == (engine, is_of_servers)

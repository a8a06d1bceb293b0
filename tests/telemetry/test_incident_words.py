"""An incident is said in one sentence, whatever it was."""

from typing import Any

import pytest
from fact_stream import ENGINE

from vllm_obs.telemetry.death_cause import DeathCause
from vllm_obs.telemetry.death_traces import Trace
from vllm_obs.telemetry.death_watch import End
from vllm_obs.telemetry.incident_finding import FailedStep, Finding, finding_of_steps
from vllm_obs.telemetry.incident_words import end_line, sentence, size
from vllm_obs.telemetry.memory_limits import MemoryLimits
from vllm_obs.telemetry.records import StepFailed

END = End("EngineCore_DP0", 7, None, 100)
API_END = End("APIServer_0", 1, None, 101)
MEMORY = MemoryLimits("/group", 0, 1 << 30, 0, 0, 512 << 20, 0)


def said(death: DeathCause, **end: Any) -> str:
    return sentence(Finding(death.cause, END.role, END.pid, 100, death, END._replace(**end)), None, 0)


@pytest.mark.parametrize(
    ("death", "end", "words"),
    [
        (DeathCause("killed", "SIGTERM"), {"exit_code": -15}, "was killed by SIGTERM"),
        (
            DeathCause("out_of_memory", "SIGKILL"),
            {"exit_code": -9, "memory": MEMORY},
            "was killed by the kernel for lack of memory (it held 512 MiB, its control group may have 1 GiB)",
        ),
        (
            DeathCause("out_of_memory"),
            {"exit_code": 71, "memory": MemoryLimits("", 0, 0, 0, 0, 0, 3 << 30)},
            "could get no memory and ended with exit code 71 (its address space may have 3 GiB)",
        ),
        (
            DeathCause("crashed", "SIGSEGV", trace=Trace("Segmentation fault", "engine/core.py:4 in step")),
            {"exit_code": -11},
            "crashed with SIGSEGV at engine/core.py:4 in step",
        ),
        (DeathCause("exit"), {"exit_code": 3}, "left with exit code 3"),
        (
            DeathCause("exception", trace=Trace("KeyError", "engine/core.py:4 in step")),
            {"exit_code": 70},
            "gave up with exit code 70: KeyError at engine/core.py:4 in step",
        ),
        (
            DeathCause("exception", last_words="the executor was shut down"),
            {"exit_code": 70},
            "gave up with exit code 70: the executor was shut down",
        ),
    ],
)
def test_how_a_process_ended(death: DeathCause, end: dict[str, Any], words: str) -> None:
    assert said(death, **end) == f"EngineCore_DP0 (pid 7) {words}."


def test_who_followed_and_what_was_open() -> None:
    death = DeathCause("killed", "SIGKILL")
    others = [API_END, API_END._replace(role="Worker_TP0"), API_END._replace(role="Worker_TP1")]
    finding = Finding("killed", END.role, END.pid, 100, death, END, others)
    assert sentence(finding, None, 1) == (
        "EngineCore_DP0 (pid 7) was killed by SIGKILL. APIServer_0, Worker_TP0 and Worker_TP1 ended with it. "
        "1 request was open."
    )


def test_a_step_that_got_no_memory() -> None:
    failed = StepFailed(4, "RuntimeError: DefaultCPUAllocator: can't allocate memory", 9, ["r-1"])
    finding = finding_of_steps([FailedStep(ENGINE, failed)])
    assert finding.cause == "out_of_memory"
    assert sentence(finding, None, 0) == (
        "Step 4 of engine 0 could get no memory with RuntimeError; 1 request ended with an error, "
        "the engine goes on."
    )


def test_an_end_in_a_line() -> None:
    codes = (None, -9, 70)
    assert [end_line(API_END._replace(exit_code=code)) for code in codes] == [
        "APIServer_0 (pid 1) ended",
        "APIServer_0 (pid 1) was killed by SIGKILL",
        "APIServer_0 (pid 1) ended with exit code 70",
    ]


def test_sizes() -> None:
    assert [size(number) for number in (5, 2048, 3 << 20, 5 << 29)] == ["5 bytes", "2 KiB", "3 MiB", "2.5 GiB"]

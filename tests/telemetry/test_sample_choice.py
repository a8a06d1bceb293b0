"""py-spy is used where it is installed and permitted; else each process samples itself, and it is said why."""

import os
from pathlib import Path

import pytest

from vllm_obs.telemetry.flight_recorder import FlightRecorder
from vllm_obs.telemetry.sample_choice import (
    AUTO,
    NoSamplerError,
    SamplerChoice,
    choose_sampler,
    targets_of,
)
from vllm_obs.telemetry.sample_pyspy import Target
from vllm_obs.telemetry.sample_set import IN_PROCESS, PY_SPY

TARGETS = [Target("APIServer_0", 1), Target("EngineCore_DP0", 2)]


def may(pid: int) -> str:
    return ""


def may_not_the_second(pid: int) -> str:
    return "the kernel does not permit it (ptrace)" if pid == 2 else ""


def test_auto_takes_py_spy_where_it_may_look_at_all() -> None:
    assert choose_sampler(AUTO, TARGETS, "/bin/py-spy", may) == SamplerChoice(
        PY_SPY, "/bin/py-spy", TARGETS, "py-spy looks at each process from outside"
    )


@pytest.mark.parametrize(
    ("program", "may_not", "says"),
    [
        (None, may, "each process samples itself: py-spy is not installed"),
        (
            "/bin/py-spy",
            may_not_the_second,
            "each process samples itself: py-spy may not look at EngineCore_DP0: "
            "the kernel does not permit it (ptrace)",
        ),
    ],
)
def test_auto_lets_each_sample_itself_where_py_spy_cannot(program: str | None, may_not: object, says: str) -> None:
    assert callable(may_not)
    assert choose_sampler(AUTO, TARGETS, program, may_not) == SamplerChoice(IN_PROCESS, "", TARGETS, says)


def test_who_asks_for_py_spy_in_vain_is_told_why() -> None:
    with pytest.raises(NoSamplerError, match="py-spy cannot be used: py-spy is not installed"):
        choose_sampler(PY_SPY, TARGETS, None, may)
    with pytest.raises(NoSamplerError, match="may not look at EngineCore_DP0"):
        choose_sampler(PY_SPY, TARGETS, "/bin/py-spy", may_not_the_second)


def test_who_asks_for_it_gets_the_processes_own_sampler() -> None:
    choice = choose_sampler(IN_PROCESS, TARGETS, "/bin/py-spy", may)
    assert (choice.sampler, choice.program) == (IN_PROCESS, "")


def test_only_processes_that_hold_their_ring_open_are_targets(tmp_path: Path) -> None:
    recorders = [FlightRecorder(tmp_path / f"{role}.ring", role, 4096) for role in ("EngineCore_DP0", "Observer")]
    try:
        recorders[0].close()
        assert targets_of(tmp_path) == [Target("Observer", os.getpid())]
    finally:
        recorders[1].close()

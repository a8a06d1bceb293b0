"""Every way a process can end has its word, told by its exit code, its group and what it left."""

import signal
from pathlib import Path
from typing import get_args

import pytest

from vllm_obs.telemetry.death_cause import CAUSES, Cause, DeathCause, cause_of_end, is_lack_of_memory
from vllm_obs.telemetry.death_traces import Trace
from vllm_obs.telemetry.death_watch import End

ROLE = "EngineCore_DP0"
END = End(ROLE, 7, None, 100)
CRASH = 'Fatal Python error: Bus error\n\nCurrent thread 0x1:\n  File "/vllm_obs/engine/core.py", line 4 in step\n'
LOG = """\
Traceback (most recent call last):
  File "/vllm_obs/engine/core.py", line 9, in step
MemoryError
00:00:00.003 ERROR   [EngineCore_DP0] vllm_obs.engine.child_main: ValueError: a prompt
"""


def test_the_causes_are_a_closed_set() -> None:
    assert get_args(Cause) == CAUSES


@pytest.mark.parametrize(
    ("end", "cause"),
    [
        (END._replace(exit_code=-9), DeathCause("killed", "SIGKILL")),
        (END._replace(exit_code=-15), DeathCause("killed", "SIGTERM")),
        (END._replace(exit_code=-9, num_oom_kills=1), DeathCause("out_of_memory", "SIGKILL")),
        (END, DeathCause("killed", "SIGKILL", is_inferred=True)),
        (END._replace(num_oom_kills=2), DeathCause("out_of_memory", "SIGKILL", is_inferred=True)),
        (END._replace(exit_code=-signal.SIGSEGV), DeathCause("crashed", "SIGSEGV")),
        (END._replace(exit_code=-63), DeathCause("killed", "signal 63")),
        (END._replace(exit_code=3), DeathCause("exit")),
        (END._replace(exit_code=70), DeathCause("exception")),
        (END._replace(exit_code=71), DeathCause("out_of_memory")),
    ],
)
def test_what_left_nothing_is_told_by_its_code(end: End, cause: DeathCause, tmp_path: Path) -> None:
    assert cause_of_end(end, tmp_path) == cause


@pytest.mark.parametrize("code", [None, -signal.SIGBUS])
def test_a_crash_has_its_stacks(code: int | None, tmp_path: Path) -> None:
    (tmp_path / f"{ROLE}.fault").write_text(CRASH)
    trace = Trace("Bus error", "engine/core.py:4 in step")
    crashed = DeathCause("crashed", "SIGBUS", trace=trace, crash_stacks=CRASH)
    assert cause_of_end(END._replace(exit_code=code), tmp_path) == crashed


def test_an_exception_has_its_type_and_place(tmp_path: Path) -> None:
    (tmp_path / f"{ROLE}.log").write_text(LOG)
    trace = Trace("MemoryError", "engine/core.py:9 in step")
    assert cause_of_end(END._replace(exit_code=71), tmp_path) == DeathCause(
        "out_of_memory", trace=trace, last_words="ValueError"
    )
    assert cause_of_end(END._replace(exit_code=70), tmp_path) == DeathCause(
        "exception", trace=trace, last_words="ValueError"
    )


def test_lack_of_memory_is_known_by_its_words() -> None:
    words = ("MemoryError", "OutOfMemoryError: x", "RuntimeError: DefaultCPUAllocator: can't allocate memory: 5")
    assert [is_lack_of_memory(each) for each in (*words, "ValueError: memory")] == [True, True, True, False]

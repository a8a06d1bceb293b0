"""What is made of the words about an engine's end: who is told what, and whether a request can be at fault."""

from pathlib import Path

import pytest

from vllm_obs.server.engine_deaths import OomKills, is_from_outside, told_cause
from vllm_obs.server.errors import request_failed
from vllm_obs.telemetry.memory_limits import MemoryReader

WORKER_LEFT = "Worker_TP1 exited with code 3"
SECRET = "cannot read /home/somebody/secret"


@pytest.mark.parametrize(
    ("cause", "told", "is_outside"),
    [
        ("EngineCore_DP0 was killed by SIGKILL", "EngineCore_DP0 was killed by SIGKILL", True),
        ("EngineCore_DP0 was killed by SIGSEGV", "EngineCore_DP0 was killed by SIGSEGV", False),
        ("EngineCore_DP0 was killed by signal 40", "EngineCore_DP0 was killed by signal 40", False),
        (f"EngineCore_DP0 exited with code 70: OSError: {SECRET}", "EngineCore_DP0 exited with code 70", False),
        (
            "EngineCore_DP0 exited with code 70: Worker_TP1 was killed by SIGKILL",
            "Worker_TP1 was killed by SIGKILL",
            True,
        ),
        (
            f"EngineCore_DP0 exited with code 70: Worker_TP1 exited with code 3: {SECRET}",
            "Worker_TP1 exited with code 3",
            False,
        ),
        (
            f"EngineCore_DP0 exited with code 70: Node_1 was lost: {SECRET} gave no sign of life for 5 s",
            "Node_1 was lost",
            True,
        ),
        (f"EngineCore_DP0 exited with code 70: Worker_TP1 was lost: {SECRET}", "Worker_TP1 was lost", True),
        ("the task that reads the engine's outputs failed", "", False),
    ],
)
def test_only_whose_end_it_was_and_how_it_ended_is_told(cause: str, told: str, is_outside: bool) -> None:
    assert (told_cause(cause), is_from_outside(cause)) == (told, is_outside)
    message = request_failed("engine_dead", cause).message
    assert message == "the engine stopped before the request was finished" + (f": {told}" if told else "")


def test_other_failures_tell_nothing_of_their_cause() -> None:
    assert request_failed("internal_error", SECRET).message == "the request failed inside the engine"
    refused = request_failed("poison_request", SECRET)
    assert (refused.status, SECRET in refused.message) == (400, False)


def test_a_process_killed_for_lack_of_memory_meanwhile_is_seen(tmp_path: Path) -> None:
    group = tmp_path / "sys/fs/cgroup/ours"
    group.mkdir(parents=True)
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/cgroup").write_text("0::/ours\n")
    (group / "memory.events").write_text("oom_kill 2\n")
    kills = OomKills(7, MemoryReader(tmp_path))
    assert not kills.have_risen
    (group / "memory.events").write_text("oom_kill 3\n")
    assert kills.have_risen
    assert not OomKills(8, MemoryReader(tmp_path)).have_risen

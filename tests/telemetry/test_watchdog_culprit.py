"""Of an engine that stands still one process is named: the one that can do something about it."""

import pytest

from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.watchdog_culprit import culprit_of, says, server_culprit, work_in_words
from vllm_obs.telemetry.watchdog_rule import EngineLook, ProcessLook, Track, Work

TRACK = Track("stalled", 1000, 10, 2000, (), 500, 9, 0)
WAITING, EXECUTING, SAMPLING = Activity.WAITING, Activity.EXECUTING, Activity.SAMPLING


def core(activity: Activity, heartbeat_at: int = 500) -> ProcessLook:
    return ProcessLook("EngineCore_DP0", 1, -1, 1, heartbeat_at, 9, 100, activity, 0)


def worker(rank: int, activity: Activity, step: int = 9, progress: int = 50) -> ProcessLook:
    return ProcessLook(f"Worker_TP{rank}", 10 + rank, rank, 2, 0, step, progress, activity, 0)


def named(look: EngineLook, work: Work = Work(1), **states: str) -> tuple[str, str]:  # noqa: B008 - a constant
    found = culprit_of(look, TRACK, work, lambda pid: states.get(f"pid{pid}", "S"))
    return found.process.role, found.does


@pytest.mark.parametrize(
    ("letter", "does"),
    [
        ("T", "is stopped by a signal"),
        ("t", "is stopped by a debugger"),
        ("D", "waits in the kernel (disk or driver) and cannot be interrupted"),
        ("Z", "has ended"),
    ],
)
def test_one_that_the_kernel_holds_comes_first(letter: str, does: str) -> None:
    look = EngineLook("0", core(EXECUTING), (worker(0, EXECUTING, progress=1), worker(1, EXECUTING)))
    assert named(look, pid11=letter) == ("Worker_TP1", f"{does}, last seen in the forward pass of step 9")


def test_a_stopped_core_comes_before_what_waits_for_it() -> None:
    look = EngineLook("0", core(Activity.SCHEDULING), (worker(0, WAITING), worker(1, WAITING)))
    assert named(look, pid1="T", pid10="D") == (
        "EngineCore_DP0",
        "is stopped by a signal, last seen planning step 9",
    )


def test_the_rank_that_is_behind_is_named() -> None:
    behind = EngineLook("0", core(EXECUTING), (worker(0, EXECUTING), worker(1, EXECUTING, progress=49)))
    assert named(behind) == ("Worker_TP1", "does not get on, now in the forward pass of step 9")
    done = EngineLook("0", core(SAMPLING), (worker(0, WAITING), worker(1, SAMPLING)))
    assert named(done) == ("Worker_TP1", "does not get on, now sampling in step 9")
    deaf = EngineLook("0", core(EXECUTING), (worker(0, EXECUTING), worker(1, WAITING, step=8)))
    assert named(deaf) == ("Worker_TP1", "has not begun step 9, now waiting for messages")


def test_an_answer_that_the_core_does_not_hear_is_the_cores() -> None:
    look = EngineLook("0", core(EXECUTING), (worker(0, WAITING), worker(1, WAITING)))
    assert named(look) == ("EngineCore_DP0", "waits for the answer of step 9, and all its workers wait for it")


@pytest.mark.parametrize("workers", [(), (worker(0, WAITING),)])
def test_a_core_that_hangs_in_its_own_work_is_named_with_it(workers: tuple[ProcessLook, ...]) -> None:
    look = EngineLook("0", core(Activity.UPDATING), workers)
    assert named(look) == ("EngineCore_DP0", "does not get on, now applying the answer of step 9")


def test_a_core_that_works_for_one_device_is_named_with_the_forward_pass() -> None:
    assert named(EngineLook("0", core(EXECUTING))) == (
        "EngineCore_DP0",
        "does not get on, now in the forward pass of step 9",
    )


def test_a_core_that_waits_is_told_apart_by_what_it_waits_for() -> None:
    look = EngineLook("0", core(WAITING))
    untaken = named(look, Work(1, submitted_at=600))
    assert untaken == ("EngineCore_DP0", "does not take what was sent to it, waiting for messages")
    assert named(look) == ("EngineCore_DP0", "waits for messages though it has sequences to run")
    goes_round = EngineLook("0", core(Activity.RECEIVING, heartbeat_at=1900))
    assert named(goes_round) == ("EngineCore_DP0", "takes messages and runs nothing, now taking messages in")


def test_the_sentence_says_who_and_what() -> None:
    found = culprit_of(EngineLook("0", core(EXECUTING), (worker(3, EXECUTING),)), TRACK, Work(1), lambda pid: "T")
    assert found.process.rank == -1
    rank = found._replace(process=worker(3, EXECUTING), does="is stopped by a signal")
    who = f"Engine 0 has {work_in_words(2, 1, 4)}, and does not move"
    assert says(who, rank) == (
        "Engine 0 has 2 running and 1 waiting, and 4 that it has not taken, and does not move: "
        "Worker_TP3 (rank 3, pid 13) is stopped by a signal."
    )


def test_an_api_server_is_told_with_what_the_kernel_says() -> None:
    server = ProcessLook("APIServer_0", 5, -1, 9, 0, 0, 0, Activity.SERVING, 0)
    assert server_culprit(server, lambda pid: "T").does == "is stopped by a signal, and answers nobody"


def test_the_first_stage_that_is_behind_holds_up_those_after_it() -> None:
    first = worker(0, EXECUTING, step=8, progress=90)._replace(role="Worker_TP0_PP0", stage=0)
    second = worker(1, WAITING, step=7, progress=10)._replace(role="Worker_TP0_PP1", stage=1)
    behind = EngineLook("0", core(EXECUTING), (first, second))
    assert named(behind) == ("Worker_TP0_PP0", "has not begun step 9, now in the forward pass of step 8")
    slow = EngineLook("0", core(EXECUTING), (first._replace(step=9, activity=WAITING), second))
    assert named(slow) == ("Worker_TP0_PP1", "has not begun step 9, now waiting for messages")


def test_the_kernel_here_is_not_asked_about_a_process_elsewhere() -> None:
    there = worker(1, EXECUTING, progress=49)._replace(host="node1")
    look = EngineLook("0", core(EXECUTING), (worker(0, EXECUTING), there))
    assert named(look, pid11="T") == ("Worker_TP1", "does not get on, now in the forward pass of step 9")
    assert "pid 11 on node1" in says("Engine 0", culprit_of(look, TRACK, Work(1), lambda pid: "S"))

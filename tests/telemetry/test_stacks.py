"""The stacks of other processes are taken whatever they do, and where they cannot be, that is said."""

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from vllm_obs.telemetry import stack_answer, stack_ask, stacks
from vllm_obs.telemetry.flight_recorder import FlightRecorder
from vllm_obs.telemetry.process_reader import ProcessReader
from vllm_obs.telemetry.stack_answer import END_LINE, stacks_text
from vllm_obs.telemetry.stack_ask import StackQuestion, ThreadWaits, thread_waits
from vllm_obs.telemetry.stack_dump import (
    MAX_FAULT_BYTES,
    STACK_SIGNAL,
    StackDump,
    dumps_stacks,
    register_stack_dump,
)
from vllm_obs.telemetry.stack_text import ThreadStack, threads_of
from vllm_obs.telemetry.stacks import ANSWER_SECONDS, STUCK, live_processes, stacks_of, take_stacks

SUPPORT = Path(__file__).parent.parent / "support"
ROOT = SUPPORT.parent.parent / "src"

Start = Callable[[str, str], subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    children: list[subprocess.Popen[str]] = []

    def start(title: str, how: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "dumping_child", str(tmp_path), title, how]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SUPPORT), str(ROOT)])}
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        children.append(child)
        assert child.stdout is not None
        assert int(child.stdout.readline()) == child.pid
        return child

    yield start
    for child in children:
        child.kill()
        child.wait(10)
        for pipe in (child.stdin, child.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def no_py_spy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "py_spy", lambda: None)


def stop(pid: int) -> None:
    """Return once the kernel says that it is stopped."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + 20
    while ProcessReader().state_of(pid) != "T":
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_process_that_hangs_in_c_shows_where_in_python_it_went_there(start: Start, tmp_path: Path) -> None:
    hanging, sleeping = start("EngineCore_DP0", "hang"), start("Worker_TP0", "sleep")
    begun = time.monotonic()
    taken = {each.title: each for each in stacks_of(tmp_path)}
    assert time.monotonic() - begun < 3 * ANSWER_SECONDS
    assert {title: (each.pid, each.how, each.says) for title, each in taken.items()} == {
        "EngineCore_DP0": (hanging.pid, "faulthandler", STUCK),
        "Worker_TP0": (sleeping.pid, "in-process", ""),
    }
    assert " in sleep_in_c\n" in taken["EngineCore_DP0"].text
    assert len(threads_of(taken["EngineCore_DP0"].text)) == 3  # with the one that could not answer
    shown = threads_of(taken["Worker_TP0"].text)
    assert [(each.name, each.frames[-1].rpartition(" in ")[2]) for each in shown] == [
        ("MainThread", "_run_module_as_main"),
        ("Thread-1 (wait_for_a_secret)", "_bootstrap"),
    ]
    assert "CANARY" not in "".join(each.text for each in taken.values())
    assert hanging.poll() is sleeping.poll() is None
    # The text before is gone each time: the file does not grow.
    for _ in range(3):
        assert list(take_stacks(tmp_path)) == ["EngineCore_DP0", "Worker_TP0"]
    path = tmp_path / "Worker_TP0.stacks"
    assert path.read_text().count(" in main\n") == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_of_one_process_only_if_one_is_asked_for(start: Start, tmp_path: Path) -> None:
    one = start("EngineCore_DP0", "sleep")
    start("Worker_TP0", "sleep")
    assert [each.title for each in stacks_of(tmp_path, (one.pid,))] == ["EngineCore_DP0"]
    assert stacks_of(tmp_path, (1,)) == []


@pytest.mark.usefixtures("no_py_spy")
def test_one_that_is_stopped_says_nothing_and_is_sent_nothing(start: Start, tmp_path: Path) -> None:
    child = start("EngineCore_DP0", "sleep")
    stop(child.pid)
    assert take_stacks(tmp_path) == {
        "EngineCore_DP0": "No stacks: it is stopped by a signal and runs no code; py-spy, which could look from "
        "outside, is not installed."
    }
    os.kill(child.pid, signal.SIGCONT)
    time.sleep(0.1)
    assert (tmp_path / "EngineCore_DP0.stacks").read_text() == ""


@pytest.mark.usefixtures("no_py_spy")
def test_one_that_has_not_registered_is_not_killed_by_the_signal(start: Start, tmp_path: Path) -> None:
    child = start("EngineCore_DP0", "unregistered")
    (text,) = take_stacks(tmp_path).values()
    assert text.startswith("No stacks: it has not registered for it (it may still be starting); ")
    assert child.poll() is None


@pytest.mark.usefixtures("no_py_spy")
def test_a_process_that_was_given_the_number_of_a_dead_one_is_sent_nothing(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start("EngineCore_DP0", "sleep")
    stranger = start("Worker_TP0", "sleep")
    monkeypatch.setattr(stacks, "live_processes", lambda run_dir: [("EngineCore_DP0", stranger.pid)])
    (text,) = take_stacks(tmp_path).values()
    assert text.startswith("No stacks: it has ended; ")
    time.sleep(0.1)
    assert (tmp_path / "Worker_TP0.stacks").read_text() == ""


@pytest.mark.parametrize(
    ("script", "how", "text", "says"),
    [
        (
            "echo 'Process 7: serve --api-key secret'; echo 'Thread 7 (idle): \"Main\"'; echo '    f (x.py:1)'",
            "py-spy",
            'Thread 7 (idle): "Main"\n    f (x.py:1)\n',
            "Looked at from outside with py-spy: it is stopped by a signal and runs no code.",
        ),
        (
            "echo 'Error: Permission Denied' >&2; exit 1",
            "",
            "",
            "No stacks: it is stopped by a signal and runs no code; py-spy could not look either "
            "(Error: Permission Denied).",
        ),
        (
            "exec sleep 60",
            "",
            "",
            "No stacks: it is stopped by a signal and runs no code; py-spy could not look either "
            "(no answer within 0.2 s).",
        ),
    ],
)
def test_py_spy_is_asked_of_what_cannot_answer(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, how: str, text: str, says: str
) -> None:
    program = tmp_path / "py-spy"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    monkeypatch.setattr(stacks, "py_spy", lambda: str(program))
    monkeypatch.setattr(stacks, "PY_SPY_SECONDS", 0.2)
    child = start("EngineCore_DP0", "sleep")
    stop(child.pid)
    assert [tuple(each) for each in stacks_of(tmp_path)] == [("EngineCore_DP0", child.pid, how, text, says)]


def test_one_that_works_hard_answers_each_look_and_is_sent_no_signal(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Frames that are going in and out are no reading matter for a signal handler.
    monkeypatch.setattr(signal, "pidfd_send_signal", None)
    child = start("EngineCore_DP0", "busy")
    num_threads = [len(threads_of(taken.text)) for _ in range(60) for taken in stacks_of(tmp_path)]
    # On a crowded machine it may come too late, which is said; it does not come to harm.
    assert len(num_threads) == 60
    assert 5 in num_threads
    assert child.poll() is None


@pytest.mark.usefixtures("no_py_spy")
def test_one_that_is_only_slow_is_waited_for_and_sent_no_signal(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = start("EngineCore_DP0", "sleep")
    monkeypatch.setattr(stack_ask, "_write_to_pipe", lambda path: None)
    begun = time.monotonic()
    (taken,) = stacks_of(tmp_path, timeout_seconds=0.1)
    assert time.monotonic() - begun >= stacks.PATIENCE * 0.1
    assert taken.says.startswith("No stacks: it did not answer in time; ")
    assert (tmp_path / "EngineCore_DP0.stacks").read_text() == ""
    assert child.poll() is None


def test_stuck_is_what_waits_for_the_lock_while_nothing_is_written(start: Start, tmp_path: Path) -> None:
    child = start("EngineCore_DP0", "hang")
    question = StackQuestion(tmp_path, "EngineCore_DP0", child.pid)
    assert not question.is_stuck()
    assert question.ask() == ""
    deadline = time.monotonic() + 20
    while not question.is_stuck():
        assert time.monotonic() < deadline
        if question.answer():  # it was asked before it hung
            assert question.ask() == ""
        time.sleep(0.02)
    assert thread_waits(os.getpid()) is None  # it has no such thread


def test_one_that_has_no_time_on_the_cores_is_not_taken_to_be_stuck(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = start("EngineCore_DP0", "sleep")
    waits, delay_ns = iter(range(0, 10**6, 1000)), iter(range(0, 10**15, 10**10))
    monkeypatch.setattr(stack_ask, "thread_waits", lambda pid: ThreadWaits(next(waits), next(delay_ns)))
    question = StackQuestion(tmp_path, "EngineCore_DP0", child.pid)
    assert question.ask() == ""
    assert not question.is_stuck()
    delay_ns = iter([10**10])  # what was ready to run has run since
    assert question.is_stuck()


def test_the_waits_of_threads_are_read_whole_or_not_at_all(tmp_path: Path) -> None:
    for tid, comm, delay in ((7, "python", 5), (8, "stack-answer", 6)):
        task = tmp_path / "7" / "task" / str(tid)
        task.mkdir(parents=True)
        (task / "comm").write_text(f"{comm}\n")
        (task / "schedstat").write_text(f"1 {delay} 1\n")
        (task / "status").write_text("Name:\tx\nvoluntary_ctxt_switches:\t9\nnonvoluntary_ctxt_switches:\t1\n")
    assert thread_waits(7, tmp_path) == ThreadWaits(num_waits=9, delay_ns=11)
    (tmp_path / "7" / "task" / "7" / "schedstat").unlink()
    assert thread_waits(7, tmp_path) is None


@pytest.mark.usefixtures("no_py_spy")
def test_what_lies_in_the_place_of_the_pipe_is_not_written_to(start: Start, tmp_path: Path) -> None:
    start("EngineCore_DP0", "sleep")
    path = tmp_path / "EngineCore_DP0.ask"
    path.unlink()
    path.write_text("mine")
    (text,) = take_stacks(tmp_path).values()
    assert text.startswith("No stacks: it has not registered for it")
    assert path.read_text() == "mine"


def test_an_answer_has_a_longest_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack_answer, "MAX_TEXT_BYTES", 100)
    done = threading.Event()
    other = threading.Thread(target=done.wait, name='a"b\n' + "c" * 100)
    other.start()
    try:
        answer = stack_answer._answer()
        assert f'"a?b?{"c" * 60}" (most recent call first):\n' in stacks_text()
    finally:
        done.set()
        other.join()
    assert len(answer) == 100
    assert answer.decode().endswith(END_LINE)


def test_a_crash_among_busy_threads_leaves_the_place_as_well(start: Start, tmp_path: Path) -> None:
    for number in range(3):
        child = start(f"Worker_TP{number}", "busy-crash")
        child.communicate("x", timeout=30)
        assert child.returncode == -signal.SIGSEGV
        text = (tmp_path / f"Worker_TP{number}.fault").read_text()
        assert text.startswith("Fatal Python error: Segmentation fault")
        assert " in crash\n" in text
        assert [frame.rpartition(" in ")[2] for frame in threads_of(text)[0].frames][1:3] == ["crash", "main"]


def test_a_crash_leaves_its_trace_and_what_was_there_before(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "EngineCore_DP0.fault"
    path.write_text("of an earlier process\n")
    child = start("EngineCore_DP0", "crash")
    child.communicate("x", timeout=30)
    assert child.returncode == -signal.SIGSEGV
    text = path.read_text()
    assert text.startswith("of an earlier process\nFatal Python error: Segmentation fault")
    assert " in crash\n" in text
    assert "CANARY" not in text


def test_what_crashes_leave_does_not_grow_without_end(tmp_path: Path) -> None:
    path = tmp_path / "EngineCore_DP0.fault"
    path.write_bytes(b"x" * (MAX_FAULT_BYTES + 1))
    StackDump(tmp_path, "EngineCore_DP0").close()
    assert path.stat().st_size == 0


def test_a_registration_is_taken_back_whole(tmp_path: Path) -> None:
    num_files = len(list(Path("/proc/self/fd").iterdir()))
    assert not ProcessReader().catches(os.getpid(), STACK_SIGNAL)
    threads = threading.enumerate()
    with dumps_stacks(tmp_path, "APIServer_0"):
        assert (tmp_path / "APIServer_0.ask").is_fifo()
        assert ProcessReader().catches(os.getpid(), STACK_SIGNAL)
        os.kill(os.getpid(), STACK_SIGNAL)
        assert " in test_a_registration_is_taken_back_whole\n" in (tmp_path / "APIServer_0.stacks").read_text()
    assert not ProcessReader().catches(os.getpid(), STACK_SIGNAL)
    assert threading.enumerate() == threads
    assert not (tmp_path / "APIServer_0.ask").exists()
    assert len(list(Path("/proc/self/fd").iterdir())) == num_files


def test_without_a_directory_a_process_goes_on_without(tmp_path: Path) -> None:
    assert register_stack_dump("", "x") is None
    assert register_stack_dump(tmp_path / "none", "x") is None


def test_a_registration_that_fails_half_way_leaves_no_file_open(tmp_path: Path) -> None:
    (tmp_path / "x.fault").mkdir()
    num_files = len(list(Path("/proc/self/fd").iterdir()))
    assert register_stack_dump(tmp_path, "x") is None
    assert len(list(Path("/proc/self/fd").iterdir())) == num_files


def test_a_title_is_no_way_out_of_the_directory(tmp_path: Path) -> None:
    with_path = FlightRecorder(tmp_path / "a.ring", "../../etc/x", 4096)
    assert live_processes(tmp_path) == []
    with_path.close()


def test_who_takes_stacks_waits_for_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "TURN_SECONDS", 0.02)
    with stacks._TURN:
        failed: list[BaseException] = []

        def take() -> None:
            try:
                stacks_of(tmp_path)
            except TimeoutError as error:
                failed.append(error)

        other = threading.Thread(target=take)
        other.start()
        other.join(20)
    assert [str(error) for error in failed] == ["others have been taking stacks for 0.02 s"]


def test_threads_are_read_from_either_text() -> None:
    dumped = (
        "Thread 0x00007f00 (most recent call first):\n"
        '  File "/a/b.py", line 3 in poll\n\n'
        "Current thread 0x00007f01 (most recent call first):\n"
        '  File "/a/c.py", line 4 in run\n  File "/a/d.py", line 5 in <module>\n'
    )
    assert threads_of(dumped) == [
        ThreadStack("0x00007f00", "", ['File "/a/b.py", line 3 in poll']),
        ThreadStack("0x00007f01", "", ['File "/a/c.py", line 4 in run', 'File "/a/d.py", line 5 in <module>']),
    ]
    outside = 'Python v3.11.7 (/x)\n\nThread 7 (idle): "MainThread"\n    f (x.py:1)\nThread 0x8 (active)\n'
    assert threads_of(outside) == [ThreadStack("7", "MainThread", ["f (x.py:1)"]), ThreadStack("0x8", "", [])]
    crashed = 'Fatal Python error: Aborted\n\nStack (most recent call first):\n  File "/a/b.py", line 3 in f\n'
    assert threads_of(crashed) == [ThreadStack("", "", ['File "/a/b.py", line 3 in f'])]
    assert threads_of("No stacks: it has ended.") == []

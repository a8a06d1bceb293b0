"""Children: started with their configuration, watched, named when they die, and never left behind."""

import contextlib
import os
import re
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack
import psutil
import pytest
from process_watch import gone

from vllm_obs.engine.child import EXIT_OUT_OF_MEMORY, MAX_ENDS, Child, describe_exit, spawn, unbidden_ends
from vllm_obs.engine.child_main import _told_cause
from vllm_obs.engine.child_pipe import READY, read_message, write_message
from vllm_obs.engine.errors import ConfigError, StartupError

pytestmark = pytest.mark.usefixtures("child_modules")

START_SECONDS = 30.0
TITLE = "EngineCore_DP0"


@contextmanager
def child_that(behaviour: str, **configuration: Any) -> Iterator[Child]:
    child = spawn("fake_child", TITLE, {"behaviour": behaviour, **configuration})
    try:
        yield child
    finally:
        child.stop(0.0)


def test_a_child_has_its_configuration_title_and_place() -> None:
    with child_that("serve", number=7, nested={"a": [1, None, "é"]}) as child:
        facts = child.wait_for(READY, START_SECONDS)
        assert facts["configuration"] == {"behaviour": "serve", "number": 7, "nested": {"a": [1, None, "é"]}}
        assert facts["pid"] == child.pid
        assert facts["title"] == f"vllm-obs::{TITLE}"[:15]
        assert facts["session"] == os.getsid(0)
        assert facts["ignores"] == [1, 1]


def test_a_child_inherits_two_pipes_and_nothing_else() -> None:
    with child_that("serve") as first, child_that("serve") as second:
        num_fds = [len(child.wait_for(READY, START_SECONDS)["fds"]) for child in (first, second)]
        assert num_fds[0] == num_fds[1] <= 6


def test_an_unrelated_grandchild_inherits_no_pipe() -> None:
    with child_that("unrelated child") as child:
        pid = child.wait_for(READY, START_SECONDS)
        try:
            # What this process itself was given to pass on (by whoever runs the tests) is no pipe of a child.
            ours = {path.name for path in Path("/proc/self/fd").iterdir() if _is_inherited(int(path.name))}
            assert _pipes_of(pid) - ours <= {"0", "1", "2"}
        finally:
            os.kill(pid, signal.SIGKILL)


def _pipes_of(pid: int) -> set[str]:
    """A program that has just begun may have other files open: its libraries."""
    found: set[str] = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found |= {path.name} if str(path.readlink()).startswith("pipe:") else set()
    return found


def _is_inherited(fd: int) -> bool:
    with contextlib.suppress(OSError):
        return os.get_inheritable(fd)
    return False


def test_ctrl_c_and_sigterm_do_not_end_a_child_even_while_it_starts() -> None:
    with child_that("serve") as child:
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(child.pid, number)
        child.wait_for(READY, START_SECONDS)
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(child.pid, number)
        assert not child.wait(0.3)


def test_a_child_ends_by_order_with_code_0() -> None:
    with child_that("serve") as child:
        child.wait_for(READY, START_SECONDS)
        child.stop(START_SECONDS)
        assert child.exit_code == 0
        assert child.exit_cause == f"{TITLE} exited with code 0"


def test_an_order_during_the_start_ends_the_child_at_once() -> None:
    with child_that("silent") as child:
        child.stop(START_SECONDS)
        assert child.exit_code == 0


def test_a_child_that_ignores_the_order_is_killed_after_the_bound() -> None:
    with child_that("deaf") as child:
        child.wait_for(READY, START_SECONDS)
        child.stop(0.2)
        assert child.exit_code == -signal.SIGKILL


def test_only_an_end_that_was_not_ordered_is_kept_to_be_recorded() -> None:
    known = unbidden_ends()
    with child_that("leave with 1") as child, child_that("serve") as other:
        assert child.wait(START_SECONDS)
        other.wait_for(READY, START_SECONDS)
    (end,) = [end for end in unbidden_ends() if end not in known]
    assert len(unbidden_ends()) <= MAX_ENDS
    assert end[:3] == (TITLE, child.pid, 1)
    assert (child.was_told, other.was_told) == (False, True)


def test_stopping_twice_closes_everything_once() -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    with child_that("leave") as child:
        child.wait(START_SECONDS)
        child.stop()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    assert not [thread for thread in threading.enumerate() if thread.name == f"watch {TITLE}"]


@pytest.mark.parametrize(
    ("behaviour", "error", "code", "words"),
    [
        ("config error", ConfigError, 78, "^there is no such model$"),
        ("error", StartupError, 70, "^KeyError: 'x'$"),
        ("out of memory", StartupError, EXIT_OUT_OF_MEMORY, "^out of memory$"),
        ("leave", StartupError, 0, f"^{TITLE} exited with code 0$"),
        ("leave with 1", StartupError, 1, f"^{TITLE} exited with code 1$"),
        ("leave with 78", StartupError, 78, f"^{TITLE} exited with code 78$"),
    ],
)
def test_a_child_that_fails_to_start_says_why(behaviour: str, error: type[Any], code: int, words: str) -> None:
    """Its own exit code is not its owner's: 78 needs the child's word, and 1 would mean that work was cut off."""
    with child_that(behaviour) as child:
        with pytest.raises(error, match=words) as failure:
            child.wait_for(READY, START_SECONDS)
        assert failure.value.exit_code == (78 if error is ConfigError else 70)
        assert child.wait(START_SECONDS)
        assert child.exit_code == code


@pytest.mark.parametrize("behaviour", ["config error", "engine dead"])
def test_a_bad_start_is_left_to_the_owner_to_tell(behaviour: str, capfd: pytest.CaptureFixture[str]) -> None:
    with child_that(behaviour) as child:
        assert child.wait(START_SECONDS)
    told = capfd.readouterr().err
    assert told == "" if behaviour == "config error" else "a worker died" in told


def test_a_child_that_is_killed_while_it_starts_is_seen_and_named() -> None:
    with child_that("silent") as child:
        threading.Timer(0.2, os.kill, (child.pid, signal.SIGKILL)).start()
        with pytest.raises(StartupError, match=f"{TITLE} was killed by SIGKILL"):
            child.wait_for(READY, START_SECONDS)


def test_waiting_for_a_silent_child_has_a_deadline() -> None:
    with child_that("silent") as child, pytest.raises(StartupError, match=r"did not say READY within 0.2 s"):
        child.wait_for(READY, 0.2)


def test_the_death_of_a_thread_is_the_death_of_its_process_with_its_cause() -> None:
    with child_that("thread dies") as child:
        assert child.wait(START_SECONDS)
        assert child.exit_code == 70
        assert child.exit_cause is not None
        assert child.exit_cause.endswith("exited with code 70: the reader thread died: ValueError: bad luck")


def test_death_is_seen_within_a_second_and_told_once() -> None:
    with child_that("serve") as child:
        causes: list[str] = []
        seen = threading.Event()
        child.on_exit(lambda cause: (causes.append(cause), seen.set()))
        child.wait_for(READY, START_SECONDS)
        os.kill(child.pid, signal.SIGKILL)
        assert seen.wait(3.0)
        child.on_exit(causes.append)
        assert causes == [f"{TITLE} was killed by SIGKILL"] * 2


def test_a_child_and_its_own_end_when_its_owner_is_killed() -> None:
    script = (
        "from vllm_obs.engine.child import spawn\n"
        "import time\n"
        "child = spawn('fake_child', 'EngineCore_DP0', {'behaviour': 'own child'})\n"
        "print(*child.wait_for('READY', 30), flush=True)\n"
        "time.sleep(60)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    with owner:
        assert owner.stdout is not None
        pids = [int(word) for word in owner.stdout.readline().split()]
        owner.kill()
        assert len(pids) == 2
        assert all(gone(pid, 6.0) for pid in pids)


def test_a_child_started_from_another_thread_outlives_that_thread_but_not_its_owner() -> None:
    children: list[Child] = []
    starter = threading.Thread(target=lambda: children.append(spawn("fake_child", TITLE, {"behaviour": "serve"})))
    starter.start()
    starter.join()
    children[0].wait_for(READY, START_SECONDS)
    assert not children[0].wait(0.3)
    children[0].stop(START_SECONDS)
    assert children[0].exit_code == 0


def test_a_module_that_does_not_exist_is_a_failed_start() -> None:
    child = spawn("no_such_module", TITLE, {})
    with pytest.raises(StartupError, match="exited with code 1"):
        child.wait_for(READY, START_SECONDS)
    child.stop()


def test_exits_are_described_in_words() -> None:
    assert describe_exit("W", 3) == "W exited with code 3"
    assert describe_exit("W", -9) == "W was killed by SIGKILL"
    assert describe_exit("W", -63) == "W was killed by signal 63"


def test_pipe_messages_come_back_and_end_cleanly() -> None:
    read_fd, write_fd = os.pipe()
    try:
        write_message(write_fd, "READY", [1, "x", b"\x00"])
        assert read_message(read_fd) == ("READY", [1, "x", b"\x00"])
        os.write(write_fd, b"\xff\xff\xff\xff")
        with pytest.raises(ValueError, match="the limit is"):
            read_message(read_fd)
        os.write(write_fd, b"\x05\x00")
    finally:
        os.close(write_fd)
    assert read_message(read_fd) is None
    os.close(read_fd)


def framed(body: bytes) -> bytes:
    return struct.pack("<I", len(body)) + body


NONSENSE = [
    framed(b"\xc1"),
    framed(b"\x07"),
    framed(b"\x93\x01\x02\x03"),
    framed(bytes(msgpack.packb([1, 2]))),
    framed(bytes(msgpack.packb({"READY": 1}))),
    framed(b"\xdd\xff\xff\xff\xff"),
    framed(b"\x91" * 2000),
    b"\xff\xff\xff\xff",
]


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_what_is_no_message_is_a_value_error_whatever_it_is(nonsense: bytes) -> None:
    read_end, write_end = os.pipe()
    try:
        os.write(write_end, nonsense)
        with pytest.raises(ValueError, match=r"message"):
            read_message(read_end)
    finally:
        os.close(read_end)
        os.close(write_end)


def test_the_end_of_a_child_that_talked_nonsense_is_seen() -> None:
    with child_that("nonsense", nonsense=NONSENSE[1]) as child:
        assert child.wait(START_SECONDS)
        assert child.exit_cause == f"{TITLE} exited with code 9"


@pytest.mark.parametrize("payload", [None, ["why", "x"]])
def test_a_failure_that_is_told_badly_is_a_failure(payload: Any) -> None:
    with (
        child_that("nonsense", nonsense=framed(bytes(msgpack.packb(["FAILED", payload])))) as child,
        pytest.raises(StartupError, match=re.escape(repr(payload))),
    ):
        child.wait_for(READY, START_SECONDS)


def test_who_is_told_of_an_end_and_fails_keeps_nobody_else_from_hearing_it() -> None:
    heard: list[str] = []

    def fail(cause: str) -> None:
        raise RuntimeError("not today")

    with child_that("serve") as child:
        child.wait_for(READY, START_SECONDS)
        child.on_exit(fail)
        child.on_exit(heard.append)
        os.kill(child.pid, signal.SIGKILL)
        assert child.wait(START_SECONDS)
        child.stop()
        assert heard == [f"{TITLE} was killed by SIGKILL"]


def test_orders_reach_the_child_in_order_even_those_that_came_early() -> None:
    with child_that("obey") as child:
        for number in range(3):
            assert child.order("ADD", number)
        assert child.wait_for("OBEYED", START_SECONDS) == [0, 1, 2]
        assert child.order("ADD", 3)
        assert child.order("FAIL", None), "an order that cannot be obeyed harms nobody"
        assert child.order("ADD", 4)
        assert child.wait_for("OBEYED AGAIN", START_SECONDS) == [0, 1, 2, 3, 4]


def test_an_order_that_nobody_reads_holds_up_nobody() -> None:
    with child_that("stopped") as child:
        child.wait_for(READY, START_SECONDS)
        payload = "x" * 4000
        begun_at = time.monotonic()
        while psutil.Process(child.pid).status() != psutil.STATUS_STOPPED:
            assert time.monotonic() - begun_at < START_SECONDS
        while child.order("ADD", payload):
            assert time.monotonic() - begun_at < START_SECONDS
        assert not child.order("ADD", 1) or not child.order("ADD", payload)
        child.stop(0.0)
        assert child.exit_code == -signal.SIGKILL


def test_an_owner_that_reads_nothing_holds_up_nobody() -> None:
    with child_that("unheard") as child:
        assert child.wait_for(READY, START_SECONDS) > 100


def test_an_order_is_small_and_of_a_child_that_lives() -> None:
    with child_that("leave") as child:
        with pytest.raises(ValueError, match="an order of 5"):
            child.order("ADD", "x" * 5000)
        assert child.wait(START_SECONDS)
        assert not child.order("ADD", 1)


def test_the_cause_of_an_api_servers_end_quotes_no_request() -> None:
    error = RuntimeError("a prompt")
    assert _told_cause(error, "APIServer_1") == ("RuntimeError", 70)
    assert _told_cause(OSError("no space"), "APIServer_1") == ("OSError: no space", 70)
    assert _told_cause(error, "EngineCore_DP0") == ("RuntimeError: a prompt", 70)

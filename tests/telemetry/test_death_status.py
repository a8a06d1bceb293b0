"""How a process ended that is nobody's child here: while it waits to be reaped, and after."""

import os
import platform
import signal
import subprocess
import sys

import pytest

from vllm_obs.telemetry.death_status import ProcessHandle

KEEPS_STATUS = tuple(int(part) for part in platform.release().split(".")[:2]) >= (6, 15)


@pytest.mark.parametrize(("how", "code"), [("kill", -signal.SIGKILL), ("exit", 3)])
def test_a_process_that_nobody_has_waited_for_yet(how: str, code: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read(); sys.exit(3)"], stdin=-1
    ) as process:
        handle = ProcessHandle(process.pid)
        try:
            assert (handle.wait(0), handle.exit_code()) == (False, None)
            assert process.stdin is not None
            process.kill() if how == "kill" else process.stdin.close()
            assert handle.wait(30)
            assert handle.exit_code() == code
        finally:
            handle.close()
            handle.close()


def test_a_process_that_another_has_reaped() -> None:
    script = "import subprocess; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); p.wait()"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        handle = ProcessHandle(pid)
        os.kill(pid, signal.SIGKILL)
        owner.wait(30)
    try:
        assert handle.wait(30)
        assert handle.exit_code() == (-signal.SIGKILL if KEEPS_STATUS else None)
    finally:
        handle.close()


def test_one_that_is_gone_cannot_be_held() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait(30)
    with pytest.raises(OSError, match="No such process"):
        ProcessHandle(process.pid)

"""Who hangs is told from who is only slow, by looks and by CPU time."""

import os
import signal
import subprocess
import time

import pytest

from vllm_obs.server import observer_pulse
from vllm_obs.server.observer_pulse import (
    BUSY_LOOKS,
    HANG_LOOKS,
    IDLE_LOOKS,
    QUIET_LOOKS,
    START_LOOKS,
    STOPPED_LOOKS,
    Pulse,
    cpu_ticks,
    is_stopped,
    pulse_of,
)


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The CPU time that the Observer has now, and what it gains by each look."""
    given = [7, 0]

    def read(pid: int) -> int:
        given[0] += given[1]
        return given[0]

    monkeypatch.setattr(observer_pulse, "cpu_ticks", read)
    return given


def looks_until_hung(pulse: Pulse) -> int:
    for number in range(1, 1000):
        if pulse.look():
            return number
    raise AssertionError("it never hangs")


def test_a_ready_one_that_does_nothing_hangs_soon_and_a_busy_one_late(ticks: list[int]) -> None:
    pulse = Pulse()
    for gain, num_looks in ((0, HANG_LOOKS), (3, BUSY_LOOKS)):
        ticks[1] = gain
        pulse.begin(1)
        pulse.sign()
        assert looks_until_hung(pulse) == num_looks


def test_one_that_gets_little_cpu_is_busy_still(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def read(pid: int) -> int:
        calls.append(pid)
        return len(calls) // IDLE_LOOKS

    monkeypatch.setattr(observer_pulse, "cpu_ticks", read)
    pulse = Pulse()
    pulse.begin(1)
    pulse.sign()
    assert looks_until_hung(pulse) == BUSY_LOOKS


def test_one_that_starts_has_longer(ticks: list[int]) -> None:
    pulse = Pulse()
    pulse.begin(1)
    assert looks_until_hung(pulse) == START_LOOKS
    assert not pulse.is_quiet


def test_one_that_a_signal_stopped_is_given_up_at_once_and_before_it_is_ready_too() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            pulse = Pulse()
            pulse.begin(child.pid)
            assert not is_stopped(child.pid)
            child.send_signal(signal.SIGSTOP)
            deadline = time.monotonic() + 20
            while not is_stopped(child.pid):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert looks_until_hung(pulse) == STOPPED_LOOKS
        finally:
            child.kill()
    assert not is_stopped(child.pid)


def test_a_sign_begins_the_count_anew(ticks: list[int]) -> None:
    pulse = Pulse()
    pulse.begin(1)
    pulse.sign()
    for _ in range(3):
        assert not any(pulse.look() for _ in range(HANG_LOOKS - 1))
        pulse.sign()


def test_quiet_is_known_before_it_is_given_up(ticks: list[int]) -> None:
    pulse = Pulse()
    pulse.begin(1)
    pulse.sign()
    known = [pulse.look() or pulse.is_quiet for _ in range(QUIET_LOOKS)]
    assert known == [False] * (QUIET_LOOKS - 1) + [True]
    assert pulse.quiet_seconds == QUIET_LOOKS * observer_pulse.LOOK_SECONDS
    pulse.sign()
    assert not pulse.is_quiet


def test_cpu_time_is_that_of_the_process() -> None:
    times = os.times()
    own = (times.user + times.system) * os.sysconf("SC_CLK_TCK")
    assert own - 1 <= cpu_ticks(os.getpid()) <= own + 100
    assert cpu_ticks(2**22 + 1) == 0


def test_owner_and_askers_of_a_run_have_one_pulse_and_few_are_kept() -> None:
    assert pulse_of("/run/a") is pulse_of("/run/a")
    assert pulse_of("/run/a") is not pulse_of("/run/b")
    assert pulse_of.cache_info().maxsize == observer_pulse.MAX_RUNS

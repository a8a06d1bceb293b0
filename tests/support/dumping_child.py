"""A process that registers its stacks and then does as it is told: `python -m dumping_child DIR TITLE HOW`."""

import ctypes
import os
import sys
import threading
import time
from pathlib import Path

from vllm_obs.telemetry.flight_recorder import FlightRecorder
from vllm_obs.telemetry.stack_dump import StackDump


def sleep_in_c() -> None:
    """Hang where no Python code runs and the interpreter's lock is held."""
    libc, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    for _ in range(2):  # a sleep would end with the first signal
        libc.pthread_mutex_lock(mutex)


def crash() -> None:
    """Read at address 0."""
    ctypes.string_at(0)


class Ordered:
    """Compared by a call from C into Python."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __lt__(self, other: "Ordered") -> bool:
        return self.value < other.value


def plus_one(value: int) -> int:
    """Called from C, too."""
    return value + 1


def work() -> None:
    """Go in and out of frames as fast as can be."""
    while True:
        sorted([Ordered(value % 7) for value in range(50)])
        list(map(plus_one, (value for value in range(30))))


def wait_for_a_secret(secret: str) -> None:
    """Hang with a value at hand that nobody may read."""
    threading.Event().wait(60)


def main() -> None:
    run_dir, title, how = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    recorder = FlightRecorder(run_dir / f"{title}.ring", title, 4096)
    if how != "unregistered":
        StackDump(run_dir, title)
    threading.Thread(target=wait_for_a_secret, args=("CANARY-prompt",), daemon=True).start()
    if how.startswith("busy"):
        for _ in range(3):
            threading.Thread(target=work, name="worker", daemon=True).start()
    time.sleep(0.05)
    print(os.getpid(), flush=True)
    if how.endswith("crash"):
        sys.stdin.read(1)
        crash()
    elif how == "hang":
        sleep_in_c()
    elif how == "busy":
        work()
    time.sleep(60)
    recorder.close()


if __name__ == "__main__":
    main()

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
    ctypes.PyDLL(None).sleep(60)


def crash() -> None:
    """Read at address 0."""
    ctypes.string_at(0)


def wait_for_a_secret(secret: str) -> None:
    """Hang with a value at hand that nobody may read."""
    threading.Event().wait(60)


def main() -> None:
    run_dir, title, how = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    recorder = FlightRecorder(run_dir / f"{title}.ring", title, 4096)
    if how != "unregistered":
        StackDump(run_dir, title)
    threading.Thread(target=wait_for_a_secret, args=("CANARY-prompt",), daemon=True).start()
    time.sleep(0.05)
    print(os.getpid(), flush=True)
    if how == "crash":
        sys.stdin.read(1)
        crash()
    elif how == "hang":
        sleep_in_c()
    time.sleep(60)
    recorder.close()


if __name__ == "__main__":
    main()

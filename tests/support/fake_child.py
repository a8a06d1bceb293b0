"""A child process that does as its configuration says: `python -m fake_child`."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

from vllm_obs.engine.child_main import Owner, guarded, run_child
from vllm_obs.engine.child_pipe import READY
from vllm_obs.engine.errors import ConfigError, EngineDeadError


def behave(owner: Owner) -> None:
    """One named behaviour."""
    _BEHAVIOURS[owner.configuration["behaviour"]](owner)


def _serve(owner: Owner) -> None:
    stopping = threading.Event()
    owner.on_stop(stopping.set)
    owner.say(READY, _facts(owner))
    stopping.wait(60)


def _facts(owner: Owner) -> dict[str, Any]:
    with open("/proc/self/comm") as comm:  # noqa: PTH123
        title = comm.read().strip()
    return {
        "pid": os.getpid(),
        "title": title,
        "session": os.getsid(0),
        "configuration": owner.configuration,
        "ignores": [int(signal.getsignal(number) == signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)],
        "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd")),  # noqa: PTH208
    }


def _talk_nonsense(owner: Owner) -> None:
    """Sends its owner the bytes that its configuration holds, and leaves."""
    os.write(owner._status_fd, owner.configuration["nonsense"])
    os._exit(9)


def _deaf(owner: Owner) -> None:
    owner.on_stop(lambda: None)
    owner.say(READY)
    time.sleep(60)


def _silent(owner: Owner) -> None:
    time.sleep(60)


def _raise_config_error(owner: Owner) -> None:
    raise ConfigError("there is no such model")


def _raise_engine_dead(owner: Owner) -> None:
    raise EngineDeadError("a worker died")


def _raise(owner: Owner) -> None:
    raise KeyError("x")


def _out_of_memory(owner: Owner) -> None:
    raise MemoryError


def _thread_dies(owner: Owner) -> None:
    def body() -> None:
        raise ValueError("bad luck")

    owner.say(READY)
    threading.Thread(target=guarded(owner, "reader", body)).start()
    time.sleep(60)


def _leave(owner: Owner) -> None:
    return


def _leave_with(code: int) -> Callable[[Owner], None]:
    return lambda owner: os._exit(code)


def _own_child(owner: Owner) -> None:
    """Has a child of its own, and does not end it."""
    from vllm_obs.engine.child import spawn

    child = spawn("fake_child", "Worker_TP0", {"behaviour": "serve"})
    owner.say(READY, [os.getpid(), child.wait_for(READY, 30)["pid"]])
    time.sleep(60)


def _unrelated_child(owner: Owner) -> None:
    """Has a child that is not ours, to which no pipe may leak."""
    process = subprocess.Popen(["sleep", "60"], close_fds=False)
    owner.say(READY, process.pid)
    time.sleep(60)


def _obey(owner: Owner) -> None:
    """Adds up its orders; those that came before anybody took them as well."""
    stopping = threading.Event()
    owner.on_stop(stopping.set)
    taken: list[Any] = []
    time.sleep(0.3)

    def add(payload: Any) -> None:
        taken.append(payload)
        if len(taken) in (3, 5):
            owner.say("OBEYED" if len(taken) == 3 else "OBEYED AGAIN", list(taken))

    def fail(payload: Any) -> None:
        raise ValueError("no")

    owner.on_order("FAIL", fail)
    owner.on_order("ADD", add)
    stopping.wait(60)


def _unheard(owner: Owner) -> None:
    """Speaks for as long as an owner has room that reads nothing, and tells how often that was."""
    num_said, heard_fd = 0, owner._status_fd
    reading_fd, owner._status_fd = os.pipe()
    while owner.try_say("NEWS", "x" * 100):
        num_said += 1
    owner._status_fd = heard_fd
    owner.say(READY, num_said)
    os.close(reading_fd)
    time.sleep(60)


def _stopped(owner: Owner) -> None:
    owner.say(READY)
    os.kill(os.getpid(), signal.SIGSTOP)


_BEHAVIOURS = {
    "serve": _serve,
    "deaf": _deaf,
    "nonsense": _talk_nonsense,
    "silent": _silent,
    "obey": _obey,
    "stopped": _stopped,
    "unheard": _unheard,
    "config error": _raise_config_error,
    "engine dead": _raise_engine_dead,
    "error": _raise,
    "out of memory": _out_of_memory,
    "thread dies": _thread_dies,
    "leave": _leave,
    "leave with 1": _leave_with(1),
    "leave with 78": _leave_with(78),
    "own child": _own_child,
    "unrelated child": _unrelated_child,
}

if __name__ == "__main__":
    run_child(behave)

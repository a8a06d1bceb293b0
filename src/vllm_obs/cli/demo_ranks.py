"""Stopping and resuming the rank processes of a running demo."""

import contextlib
import re
from collections.abc import Iterator

import psutil

from vllm_obs.telemetry.process_roles import engine_of_role, rank_of

_RANK = re.compile(r"\b(Worker_\w+)\s*$")


def rank_processes(root_pid: int) -> list[psutil.Process]:
    """The rank processes of the tree below this one, in order of engine and rank; those gone are left out."""
    found: dict[str, psutil.Process] = {}
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in psutil.Process(root_pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if role := _RANK.search(" ".join(process.cmdline())):
                    found[role[1]] = process
    return [found[role] for role in sorted(found, key=lambda role: (engine_of_role(role), rank_of(role, found)))]


def rank_title(process: psutil.Process) -> str:
    """What a rank's process is called; empty for any other, or one that is gone."""
    with contextlib.suppress(psutil.NoSuchProcess):
        if role := _RANK.search(" ".join(process.cmdline())):
            return role[1]
    return ""


def resume_ranks(root_pid: int) -> None:
    """Let every rank below this process go on that was stopped."""
    for process in rank_processes(root_pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() == psutil.STATUS_STOPPED:
                process.resume()


@contextlib.contextmanager
def stopped(process: psutil.Process) -> Iterator[None]:
    """Within the block the process stands still; afterwards it goes on, whatever happened."""
    process.suspend()
    try:
        yield
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()

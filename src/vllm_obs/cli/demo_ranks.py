"""Stopping and resuming the rank processes of a running demo."""

import contextlib
from collections.abc import Iterator

import psutil

RANK_WORD = "Worker_TP"


def rank_processes(root_pid: int) -> list[psutil.Process]:
    """The rank processes of the tree below this one, in order of rank; those that are gone are left out."""
    found: list[tuple[int, psutil.Process]] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in psutil.Process(root_pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                _, word, rank = " ".join(process.cmdline()).partition(RANK_WORD)
                if word and rank.strip().isdigit():
                    found.append((int(rank), process))
    return [process for _, process in sorted(found, key=lambda entry: entry[0])]


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

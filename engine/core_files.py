"""Core files: none of a process that holds prompts and keys, whatever the limit is that it was started with."""

import contextlib
import resource

NOBODYS_LIMIT = 1
"""Bytes: fewer than any core file has, and the one limit that the kernel heeds also where a program takes it."""


def leave_no_core_files() -> None:
    """Let no memory of this process, and of those that it starts, be written down when it crashes.

    Who wants to have it raises the limit of the running process (`prlimit --core=unlimited --pid PID`).
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    with contextlib.suppress(OSError, ValueError):  # a hard limit of 0 says the same
        resource.setrlimit(resource.RLIMIT_CORE, (NOBODYS_LIMIT, hard))

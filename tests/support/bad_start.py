"""Starts that cannot work: what such a start says, how it ends, and whom it leaves behind."""

import contextlib
import os
import subprocess
import sys

import psutil

from vllm_obs.cli.serve import SERVE_FLAGS
from vllm_obs.cli.settings import environment_name

DEADLINE_SECONDS = 15.0
"""Three times the promised five seconds."""


def serve(
    *words: str, env: dict[str, str] | None = None, seconds: float = DEADLINE_SECONDS
) -> subprocess.CompletedProcess[str]:
    """What became of `vllm-obs serve` with these words."""
    return subprocess.run(
        serve_command(*words),
        capture_output=True,
        text=True,
        timeout=seconds,
        stdin=subprocess.DEVNULL,
        env=environment(env),
        check=False,
    )


def serve_command(*words: str) -> list[str]:
    """The command line of a server."""
    return [sys.executable, "-m", "vllm_obs", "serve", *words]


def environment(changes: dict[str, str] | None = None) -> dict[str, str]:
    """Ours, without what sets a flag, and with these."""
    names = {environment_name(flag) for flag in SERVE_FLAGS}
    inherited = {name: value for name, value in os.environ.items() if name not in names}
    return {**inherited, "HF_HUB_OFFLINE": "1", **(changes or {})}


def assert_one_line(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    """It ended with 78 and one line in which all of that stands."""
    assert done.returncode == 78, done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("vllm-obs: ")
    for part in parts:
        assert part in done.stderr


def processes_with(run_dir: str) -> list[int]:
    """Who still runs with this run directory in its environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("VLLM_OBS_RUN_DIR") == run_dir:
                found.append(process.pid)
    return found

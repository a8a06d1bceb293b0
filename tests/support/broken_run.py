"""A scripted run that broke: rings whose processes are dead and did not close them, as a kill leaves them."""

import os
import shutil
import time
from pathlib import Path

from scripted_run import ScriptedRun

from vllm_obs.telemetry.activity import Activity
from vllm_obs.telemetry.records import ProcessExited

NUM_STEPS = 120
PID = os.getpid()
"""Of every process of the script."""


def broken_run(run_dir: Path, exits: list[ProcessExited], *, is_api_dead: bool = False) -> int:
    """Writes a run of NUM_STEPS steps with two open requests whose engine, and perhaps server, died; the moment.

    The server recorded `exits`, whose moments are replaced by that of the death.
    """
    run_dir.mkdir(mode=0o700, exist_ok=True)
    building = run_dir.with_name(f"{run_dir.name}.building")
    building.mkdir()
    run = ScriptedRun(building, time.monotonic_ns() - 10 * 10**9)
    run.start()
    run.serve("done")
    run.submit("open-1", max_tokens=1000, label="my label")
    for _ in range(NUM_STEPS):
        run.step("open-1")
    run.submit("open-2", max_tokens=1000)
    run.core.doing(Activity.EXECUTING)
    died_at = run.pass_time(5)
    for record in exits:
        run.api.record(record._replace(exited_at=died_at))
    run.api.heartbeat(died_at)
    if is_api_dead:
        shutil.copy(run.api.path, run_dir)
    shutil.copy(run.core.path, run_dir)  # as it is now: nobody closes the copy
    if not is_api_dead:
        for name in list(run.live):
            run.finish(name, "error", "engine_dead", 500)
    run.close()
    if not is_api_dead:
        shutil.copy(run.api.path, run_dir)
    shutil.rmtree(building)
    return died_at

"""What an engine said of itself once is known to every Observer after the one that read it: limits are never 0."""

import http.client
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from observer_child import ObserverChild, observer_over
from scripted_run import BLOCK_SIZE, NUM_BLOCKS, ScriptedRun

from vllm_obs.telemetry.observer_process import CHECKPOINT_NAME

S = 10**9
MAX_NUM_SEQS = 8
NUM_LAPPING = 1500
"""So many steps fill the engine's ring more than once; they take 10 ms each."""
SIZES = {"max_num_seqs": MAX_NUM_SEQS, "num_blocks": NUM_BLOCKS, "block_size": BLOCK_SIZE}


def crowd(run: ScriptedRun, num_steps: int) -> None:
    """Two run and one waits for a place."""
    for _ in range(num_steps):
        run.step("a", "b", head_reason="max_num_seqs")


def killed(observer: ObserverChild) -> None:
    """It ends as it is, once what it shows has been kept."""
    assert observer.ask_unix("/metrics").status == 200
    os.kill(observer.child.pid, signal.SIGKILL)
    assert observer.child.wait(30.0)


def hello(observer: ObserverChild) -> dict[str, Any]:
    """The sizes that a stream of steps opens with."""
    connection = http.client.HTTPConnection(observer.host, observer.port, timeout=30)
    try:
        connection.request("GET", "/inspect/streams/steps")
        reply = connection.getresponse()
        line = next(line for line in iter(reply.readline, b"") if line.startswith(b"data: "))
        content = json.loads(line.removeprefix(b"data: "))
        return {key: content[key] for key in SIZES}
    finally:
        connection.close()


@pytest.mark.parametrize("is_checkpoint_kept", [True, False])
def test_another_observer_knows_the_limits_too(is_checkpoint_kept: bool, tmp_path: Path) -> None:
    # Without a checkpoint the engine's ring no longer holds what it said of itself.
    with ScriptedRun(tmp_path, time.monotonic_ns() - 20 * S, 1 << 17) as run:
        run.start()
        for name in ("a", "b", "w"):
            run.submit(name, max_tokens=9000)
        crowd(run, 20)
        with observer_over(tmp_path) as first:
            assert first.get("/inspect/state")["engines"][0]["blocks"]["num_blocks"] == NUM_BLOCKS
            time.sleep(1.2)
            killed(first)
        if not is_checkpoint_kept:
            for path in tmp_path.glob(f"{CHECKPOINT_NAME}*"):
                path.unlink()
        crowd(run, NUM_LAPPING)
        with observer_over(tmp_path) as second:
            state = second.get("/inspect/state")
            assert (state["telemetry"]["resumed_at"] is not None) is is_checkpoint_kept
            verdict = second.get(f"/inspect/verdict?window=10s&at={run.now}")
            evidence = verdict["findings"][0]["evidence"]
            blocks = state["engines"][0]["blocks"]
            assert {name: blocks[name] for name in ("num_blocks", "block_size")} == {
                "num_blocks": NUM_BLOCKS,
                "block_size": BLOCK_SIZE,
            }
            assert hello(second) == SIZES
            assert (evidence["max_num_seqs"], evidence["kv_blocks"]) == (MAX_NUM_SEQS, NUM_BLOCKS)
            assert verdict["says"].startswith(f"All {MAX_NUM_SEQS} places")

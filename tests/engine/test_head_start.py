"""A process with a head start becomes the first engine of its module, and ends with what it was started for."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from process_watch import gone
from run_rings import records_of

from vllm_obs.engine.args import EngineArgs
from vllm_obs.engine.child import configured
from vllm_obs.engine.child_pipe import READY
from vllm_obs.engine.client_sync import SyncMPClient
from vllm_obs.engine.engine_titles import ENGINE_MODULE
from vllm_obs.engine.head_start import head_start, started
from vllm_obs.engine.run_dir import RunDirectory
from vllm_obs.telemetry.records import ProcessPhase

pytestmark = pytest.mark.usefixtures("child_modules")

START_SECONDS = 30.0
MODULE, TITLE = "fake_child", "EngineCore_DP0"


def own_children() -> set[int]:
    return {process.pid for process in psutil.Process().children()}


def test_the_first_engine_is_the_process_that_was_started_ahead_and_the_second_is_not() -> None:
    before = own_children()
    with head_start(MODULE, torch_device=None):
        (pid,) = own_children() - before
        first = configured(started(MODULE, TITLE), TITLE, {"behaviour": "serve"})
        second = configured(started(MODULE, TITLE), TITLE, {"behaviour": "serve"})
        try:
            assert first.pid == pid != second.pid
            assert {child.wait_for(READY, START_SECONDS)["title"] for child in (first, second)} == {
                f"vllm-obs::{TITLE}"[:15]
            }
        finally:
            first.stop(0.0)
            second.stop(0.0)


def test_a_process_that_no_engine_became_is_ended() -> None:
    before = own_children()
    with head_start(MODULE, torch_device=None):
        (pid,) = own_children() - before
    assert gone(pid, 0.1)
    assert own_children() == before


def test_another_module_has_no_head_start() -> None:
    before = own_children()
    with head_start("another_module", torch_device=None):
        (ahead,) = own_children() - before
        found = started(MODULE, TITLE)
        assert found.process.pid != ahead
        found.discard()
    assert own_children() == before


def test_an_engine_with_a_head_start_serves_and_has_torch_if_it_was_to_have_it(run_base: Path) -> None:
    config = EngineArgs(load_format="synthetic").create_engine_config()
    before = own_children()
    with RunDirectory.create() as run, head_start(ENGINE_MODULE, torch_device="cpu"):
        (pid,) = own_children() - before
        observability = replace(config.observability, recorder="ring")
        client = SyncMPClient(replace(config, run_dir=str(run.path), observability=observability))
        try:
            assert client.facts.pid == pid
            assert "libtorch" in Path(f"/proc/{pid}/maps").read_text()
        finally:
            client.shutdown()
        phases = [each for each in records_of(run.path, TITLE) if isinstance(each, ProcessPhase)]
    (start,) = (each for each in phases if each.phase == "start process")
    inner = [each for each in phases if each.phase in ("import torch", "import worker", "wait for configuration")]
    assert len(inner) == 3
    assert all(start.begun_at <= each.begun_at <= each.ended_at <= start.ended_at for each in inner)
    assert own_children() == before


def test_it_ends_with_its_parent_before_it_has_a_configuration() -> None:
    script = (
        "import os, psutil, sys, time\n"
        "from vllm_obs.engine.head_start import head_start\n"
        "with head_start('vllm_obs.engine.process', torch_device=None):\n"
        "    print(psutil.Process().children()[0].pid, flush=True)\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
        assert gone(pid, START_SECONDS)

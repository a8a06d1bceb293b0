"""An engine and its workers as one tree: whoever is killed, the rest ends, names it, and leaves nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from default_model import default_config
from fake_executor import make_request, tiny_config
from process_watch import gone

from vllm_obs.engine.client_sync import SyncMPClient
from vllm_obs.engine.config import CacheConfig, ParallelConfig
from vllm_obs.engine.errors import ConfigError, EngineDeadError
from vllm_obs.engine.messages import EngineCoreRequest, FinishReason, SamplingSpec

pytestmark = pytest.mark.usefixtures("child_modules", "run_base")

REFERENCES = json.loads((Path(__file__).parents[1] / "data" / "smollm2_greedy.json").read_text())
TREE_SECONDS = 6.0


def descendants(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


def start_tree() -> SyncMPClient:
    """An engine over two fake worker processes."""
    config = replace(tiny_config(), parallel=ParallelConfig("mp", 2))
    return SyncMPClient(config, module="fake_engine_process")


@pytest.fixture
def client() -> Iterator[SyncMPClient]:
    made = start_tree()
    yield made
    made.shutdown()


def finish(client: SyncMPClient, num_endings: int) -> dict[str, list[int]]:
    """The tokens by request id, once so many have ended well."""
    tokens: dict[str, list[int]] = {}
    while num_endings:
        outputs = client.get_output(60.0)
        start = 0
        columns = zip(outputs.request_ids, outputs.num_new_tokens, outputs.finish_reasons, strict=True)
        for request_id, num_tokens, reason in columns:
            tokens.setdefault(request_id, []).extend(outputs.new_token_ids[start : start + num_tokens])
            start += num_tokens
            assert reason != FinishReason.ERROR, outputs.errors
            num_endings -= reason >= 0
    return tokens


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_worker_ends_the_engine_with_its_name(client: SyncMPClient, rank: int) -> None:
    client.add_request(make_request("a", [1, 2], max_tokens=3))
    finish(client, 1)
    workers = descendants(client.facts.pid)
    assert len(workers) == 2
    begun = time.monotonic()
    os.kill(workers[rank], signal.SIGKILL)
    with pytest.raises(EngineDeadError, match=r"exited with code 70: Worker_TP\d was killed by SIGKILL"):
        client.get_output(60.0)
    assert time.monotonic() - begun < 3.0
    assert all(gone(pid, TREE_SECONDS) for pid in [*workers, client.facts.pid])


def test_a_killed_engine_takes_its_workers_along(client: SyncMPClient) -> None:
    workers = descendants(client.facts.pid)
    os.kill(client.facts.pid, signal.SIGKILL)
    assert all(gone(pid, TREE_SECONDS) for pid in workers)
    with pytest.raises(EngineDeadError, match="EngineCore_DP0 was killed by SIGKILL"):
        client.get_output(60.0)


def test_an_orderly_end_leaves_nothing(client: SyncMPClient) -> None:
    tree = [client.facts.pid, *descendants(client.facts.pid)]
    client.shutdown()
    assert all(gone(pid, 0.5) for pid in tree)


def test_a_killed_owner_takes_the_whole_tree_along() -> None:
    script = (
        "import time, test_process_tree as tree\n"
        "client = tree.start_tree()\n"
        "print(client.facts.pid, *tree.descendants(client.facts.pid), flush=True)\n"
        "time.sleep(60)\n"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([os.environ["PYTHONPATH"], str(Path(__file__).parent)]),
    }
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as owner:
        assert owner.stdout is not None
        tree = [int(word) for word in owner.stdout.readline().split()]
        assert len(tree) == 3
        owner.kill()
        assert all(gone(pid, TREE_SECONDS) for pid in tree)


def test_a_worker_that_cannot_use_the_model_ends_the_start_with_its_own_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_OBS_TEST_HOOKS", "1")
    monkeypatch.setenv("VLLM_OBS_TEST_FAULTS", "load_1=raise")
    with pytest.raises(ConfigError, match=r"^the model cannot be used$"):
        start_tree()


def test_the_default_model_answers_through_engine_and_worker_processes() -> None:
    config = replace(
        default_config(), cache=CacheConfig(num_gpu_blocks_override=128), parallel=ParallelConfig("mp", 1)
    )
    client = SyncMPClient(config)
    try:
        for index, reference in enumerate(REFERENCES[:3]):
            prompt = np.array(reference["prompt_token_ids"], dtype=np.int32)
            spec = SamplingSpec(temperature=0.0, max_tokens=16)
            client.add_request(EngineCoreRequest(f"r{index}", 0, 0, prompt, spec, 0, None, time.monotonic_ns()))
        tokens = finish(client, 3)
        for index, reference in enumerate(REFERENCES[:3]):
            assert tokens[f"r{index}"] == reference["output_token_ids"][:16]
        (worker,) = descendants(client.facts.pid)
        os.kill(worker, signal.SIGKILL)
        with pytest.raises(EngineDeadError, match="Worker_TP0 was killed by SIGKILL"):
            client.get_output(60.0)
        assert gone(client.facts.pid, TREE_SECONDS)
    finally:
        client.shutdown()

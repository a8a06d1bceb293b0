"""A real server whose limits are too small says which, with the figures, where people and machines look."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from load_client import Asked, LoadClient
from observed_server import ObservedServer, observed, total

LOAD_SECONDS = 6.0
NUM_CLIENTS = 8


def load(server: ObservedServer, num_prompt: int, max_tokens: int, num_requests: int = NUM_CLIENTS) -> None:
    """Requests of so many clients at a time, who leave one that takes too many seconds."""
    bodies = [
        {"prompt": [number + 7] * num_prompt, "max_tokens": max_tokens, "ignore_eos": True, "stream": True}
        for number in range(num_requests)
    ]
    asked = [Asked(f"{number}", body, leave_seconds=LOAD_SECONDS) for number, body in enumerate(bodies)]
    LoadClient(server.port, NUM_CLIENTS).run(asked)


def verdict(server: ObservedServer) -> dict[str, Any]:
    return dict(server.inspect("verdict?window=10s"))


def test_too_few_places_are_named(tmp_path: Path, base: Path) -> None:
    env = {"VLLM_OBS_RUN_DIR": str(base)}
    with observed(tmp_path / "model", "--max-num-seqs", "2", env=env) as server:
        assert verdict(server)["findings"] == []
        load(server, num_prompt=20, max_tokens=2000)
        found = verdict(server)
        (finding,) = [each for each in found["findings"] if each["name"] == "max_num_seqs"]
        assert finding["says"].startswith("All 2 places for running requests are taken ")
        assert finding["evidence"]["max_num_seqs"] == 2
        assert finding["evidence"]["num_waiting_mean"] == pytest.approx(6, abs=1)
        assert finding["helps"][0].startswith("raise --max-num-seqs from 2 to about ")
        samples = server.samples()
        assert total(samples, "vllm_obs_verdict", finding="max_num_seqs") == 1
        assert total(samples, "vllm_obs_binding_limit_seconds_total", limit="max_num_seqs") > 1
        steps = server.inspect("steps?limit=5000")["steps"]
        assert "max_num_seqs" in steps["binding_limit"]
        assert any(ratio and ratio >= 1 for ratio in steps["floor_ratio"])
        shown = subprocess.run(
            [sys.executable, "-m", "vllm_obs", "top", "--once", "--json"],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, **env},
            check=True,
        )
        assert json.loads(shown.stdout)["verdict"]["window"] == "10s"


@pytest.mark.long
def test_a_cache_that_is_too_small_is_named(tmp_path: Path) -> None:
    """32 blocks hold one request of 500 tokens, or two that have not grown yet."""
    flags = ("--num-gpu-blocks-override", "44", "--max-model-len", "512")
    with observed(tmp_path / "model", *flags) as server:
        load(server, num_prompt=280, max_tokens=220, num_requests=24)
        found = verdict(server)
        named = {finding["name"]: finding for finding in found["findings"]}
        finding = named.get("preemption_storm") or named["kv_pressure"]
        assert "raise --num-gpu-blocks-override from 44 to about " in finding["helps"][0]

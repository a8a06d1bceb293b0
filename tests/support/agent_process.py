"""Starts an agent beside the test that is host 0, over loopback."""

import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import psutil
from fake_executor import tiny_config

from vllm_obs.engine.config import ParallelConfig, VllmConfig, to_wire

KEY = "a secret that only tests share"


def cluster_config(num_nodes: int = 2, world_size: int = 2, node_timeout: float = 30.0) -> VllmConfig:
    """Several hosts, all of them this one."""
    parallel = ParallelConfig(
        "mp", world_size, nnodes=num_nodes, master_port=free_pair(), node_timeout=node_timeout
    )
    return replace(tiny_config(), parallel=parallel)


def free_pair() -> int:
    """The first of two ports in a row that are free, and that the system gives nobody by itself."""
    while True:
        port = random.randrange(20_000, 32_000, 2)
        with socket.socket() as first, socket.socket() as second, contextlib.suppress(OSError):
            first.bind(("127.0.0.1", port))
            second.bind(("127.0.0.1", port + 1))
            return port


class AgentProcess:
    """An agent and its ranks, in a run directory of its own under `base`."""

    def __init__(self, config: VllmConfig, base: Path, node_rank: int = 1, **env: str) -> None:
        own = replace(config, parallel=replace(config.parallel, node_rank=node_rank), run_dir="")
        self.log = Path(tempfile.mkstemp(prefix="vllm-obs-agent-", suffix=".log")[1])
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fake_agent"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, "VLLM_OBS_RUN_DIR": str(base), "VLLM_OBS_CLUSTER_KEY": KEY, **env},
            )
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(to_wire(own)).encode())
        self.process.stdin.close()

    def children(self) -> list[psutil.Process]:
        """Its ranks."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def wait_said(self, words: str, seconds: float = 30.0) -> None:
        """Return when its log holds these words."""
        deadline = time.monotonic() + seconds
        while words not in self.log.read_text():
            assert time.monotonic() < deadline, f"{words!r} was not said:\n{self.log.read_text()}"
            time.sleep(0.02)

    def close(self) -> None:
        """End it, however the test went."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        self.log.unlink(missing_ok=True)

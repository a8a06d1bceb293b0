"""The main of `vllm-obs serve --headless`: a host's own run directory, its log, its record, and the agent."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType

from setproctitle import setproctitle

from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.errors import ConfigError, StartupError
from vllm_obs.engine.executor.multiproc import WORKER_MODULE
from vllm_obs.engine.log import configure_logging
from vllm_obs.engine.log_file import logged_to
from vllm_obs.engine.nodes.agent import Agent
from vllm_obs.engine.nodes.agent_session import Stopped
from vllm_obs.engine.nodes.remote_nodes import node_title
from vllm_obs.engine.recording import make_recorder
from vllm_obs.engine.run_dir import RunDirectory
from vllm_obs.telemetry.console import tell
from vllm_obs.telemetry.flight_recorder import WORKER_RING_BYTES
from vllm_obs.telemetry.records import ProcessStarted
from vllm_obs.telemetry.stack_dump import dumps_stacks


def check_headless(config: VllmConfig, is_headless: bool) -> None:
    """ConfigError where host 0 is to be headless, or another host is not."""
    node_rank, nnodes = config.parallel.node_rank, config.parallel.nnodes
    if is_headless and (nnodes == 1 or node_rank == 0):
        raise ConfigError(f"--headless is for hosts 1 and up of several, not for host {node_rank} of {nnodes}")
    if not is_headless and node_rank > 0:
        raise ConfigError(f"--node-rank {node_rank} needs --headless: host 0 has the API server and the engine")


def run_agent(config: VllmConfig, module: str = WORKER_MODULE) -> int:
    """Run this host's ranks for host 0 until it ends, or SIGTERM or SIGINT come; the exit code.

    0 it was told to end, or host 0 was; 70 host 0 did not come (back) in time; 78 host 0 refuses this host, or
    something is badly configured. Call it from the main thread.
    """
    title = node_title(config.parallel.node_rank)
    setproctitle(f"vllm-obs::{title}")
    configure_logging(title)
    try:
        with RunDirectory.create() as directory:
            path = directory.path
            with logged_to(path, title), dumps_stacks(path, title):
                return _run(_recorded(config, path), title, module)
    except (ConfigError, StartupError) as error:
        tell(str(error))
        return error.exit_code


def _recorded(config: VllmConfig, path: object) -> VllmConfig:
    return replace(config, run_dir=str(path), observability=replace(config.observability, recorder="ring"))


def _run(config: VllmConfig, title: str, module: str) -> int:
    recorder = make_recorder(config, title, WORKER_RING_BYTES)
    recorder.record(ProcessStarted(title, os.getpid(), time.monotonic_ns(), time.time_ns()))
    agent = Agent(config, recorder, module)
    try:
        with _signals_to(agent):
            return agent.run()
    finally:
        agent.close()
        recorder.close()


@contextmanager
def _signals_to(agent: Agent) -> Iterator[None]:
    """SIGTERM and SIGINT order the agent to end; its ranks end with what they are doing cut off."""

    def stop(number: int, frame: FrameType | None) -> None:
        agent.events.put(Stopped())

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

"""The agent of a second host over the fake workers: `python -m fake_agent`, its configuration as JSON on stdin."""

import json
import sys
from pathlib import Path

from vllm_obs.engine.config import VllmConfig, from_wire
from vllm_obs.engine.nodes import agent
from vllm_obs.engine.nodes.agent_main import run_agent

if __name__ == "__main__":
    agent.FAREWELL_SECONDS = 1.0
    sys.path.insert(0, str(Path(__file__).parent))
    raise SystemExit(run_agent(from_wire(VllmConfig, json.load(sys.stdin)), "fake_worker_process"))

"""Which host may be headless, and what the commands of both say when they are mixed up."""

from dataclasses import replace

import pytest
from agent_process import cluster_config

from vllm_obs.engine.args import EngineArgs
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.nodes.agent_main import check_headless


def test_host_0_serves_and_the_others_are_headless() -> None:
    host = cluster_config()
    other = replace(host, parallel=replace(host.parallel, node_rank=1))
    check_headless(host, is_headless=False)
    check_headless(other, is_headless=True)
    with pytest.raises(ConfigError, match=r"--headless is for hosts 1 and up of several, not for host 0 of 2"):
        check_headless(host, is_headless=True)
    with pytest.raises(ConfigError, match=r"--node-rank 1 needs --headless"):
        check_headless(other, is_headless=False)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"nnodes": 2, "pipeline_parallel_size": 2}, "several hosts need a cluster key"),
        ({"nnodes": 2, "pipeline_parallel_size": 3}, "--nnodes 2 does not divide the 3 ranks"),
        ({"nnodes": 2}, "--nnodes 2 does not divide the 1 rank of --tensor-parallel-size"),
        ({"nnodes": 2, "node_rank": 2, "pipeline_parallel_size": 2}, "--node-rank 2 is not below --nnodes 2"),
        (
            {"nnodes": 2, "pipeline_parallel_size": 2, "distributed_executor_backend": "ray"},
            "--nnodes 2 goes with --distributed-executor-backend mp, not ray",
        ),
        ({"nnodes": 2, "pipeline_parallel_size": 2, "data_parallel_size": 2}, "is for one engine, not 2"),
        ({"node_timeout": 0.0}, "--node-timeout 0 is not between 1 and 86400"),
    ],
)
def test_what_does_not_go_together_is_refused_with_the_numbers(
    fields: dict[str, object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_OBS_CLUSTER_KEY", raising=False)
    with pytest.raises(ConfigError, match=message):
        EngineArgs(**fields).create_engine_config()  # type: ignore[arg-type]

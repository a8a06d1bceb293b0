"""Which cores and which GPU a rank gets, and what the processes of ranks are called."""

import os
from dataclasses import replace

import pytest
from fake_executor import tiny_config

from vllm_obs.engine.config import ParallelConfig, VllmConfig
from vllm_obs.engine.executor.commands import rank_title
from vllm_obs.engine.worker import placement as placement_module
from vllm_obs.engine.worker.placement import Placement, bind_cores, core_share, placement


def config(engine_index: int = 0, **parallel: int) -> VllmConfig:
    return replace(tiny_config(), parallel=ParallelConfig("mp", **parallel), engine_index=engine_index)


def test_ranks_are_numbered_on_their_host() -> None:
    two_hosts = {"world_size": 6, "tensor_parallel_size": 3, "pipeline_parallel_size": 2, "nnodes": 2}
    assert placement(config(**two_hosts), 4) == Placement(1, 3)
    two_engines = {"world_size": 2, "tensor_parallel_size": 2, "data_parallel_size": 2}
    assert placement(config(engine_index=1, **two_engines), 1) == Placement(3, 4)
    assert placement(config(engine_index=1, **two_engines, data_parallel_rank=1), 1) == Placement(1, 2)


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Ten cores, of which 3 is somebody else's; what this process was bound to."""
    calls: list[list[int]] = []
    allowed = set(range(10)) - {3}
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: allowed)
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: calls.append(list(cores)))
    monkeypatch.setattr(placement_module, "usable_cores", lambda: len(allowed))
    return calls


def test_each_rank_has_cores_of_its_own_and_as_many_threads(
    bound: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(4):
        bind_cores(Placement(rank, 4))
        assert os.environ["OMP_NUM_THREADS"] == "2"
    assert bound == [[0, 1], [2, 4], [5, 6], [7, 8]]
    monkeypatch.delenv("OMP_NUM_THREADS")


@pytest.mark.parametrize("place", [Placement(0, 1), Placement(0, 10)], ids=["alone", "too-few-cores"])
def test_nobody_is_bound_alone_or_where_cores_are_too_few(place: Placement, bound: list[list[int]]) -> None:
    bind_cores(place)
    assert bound == []
    assert "OMP_NUM_THREADS" not in os.environ
    assert core_share(place) == (9 if place.num_local_ranks == 1 else 1)


def test_processes_are_called_by_shard_and_stage_and_engine() -> None:
    both = {"world_size": 6, "tensor_parallel_size": 3, "pipeline_parallel_size": 2}
    assert [rank_title(rank, config(**both)) for rank in (0, 2, 5)] == [
        "Worker_TP0_PP0",
        "Worker_TP2_PP0",
        "Worker_TP2_PP1",
    ]
    assert rank_title(4, config(engine_index=1, **both, data_parallel_size=2)) == "Worker_DP1_TP1_PP1"
    assert rank_title(0, config(engine_index=1, data_parallel_size=2)) == "Worker_DP1_TP0_PP0"
    assert rank_title(0, config()) == "Worker_TP0"
    assert rank_title(7, config(world_size=8)) == "Worker_TP7", "ranks of a synthetic engine are only counted"

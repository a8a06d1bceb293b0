"""A role tells the engine and the place of its process, whatever the deployment."""

import pytest

from vllm_obs.telemetry.process_roles import ProcessRole, engine_of_role, parse_role, rank_of


@pytest.mark.parametrize(
    ("role", "meant"),
    [
        ("EngineCore_DP0", ProcessRole("EngineCore", "0")),
        ("EngineCore_DP12", ProcessRole("EngineCore", "12")),
        ("EngineCore", ProcessRole("EngineCore", "0")),
        ("Worker_TP1", ProcessRole("Worker", "0", 1, 0)),
        ("Worker_TP2_PP1", ProcessRole("Worker", "0", 2, 1)),
        ("Worker_DP3_TP2_PP1", ProcessRole("Worker", "3", 2, 1)),
        ("Worker_DP1_TP0", ProcessRole("Worker", "1", 0, 0)),
        ("Worker", ProcessRole("Worker", "0", 0, 0)),
        ("APIServer_2", ProcessRole("APIServer")),
        ("Launcher", ProcessRole("Launcher")),
        ("Observer", ProcessRole("Observer")),
        ("WorkerX_TP1", ProcessRole("WorkerX")),
        ("", ProcessRole("")),
    ],
)
def test_the_parts_of_a_role(role: str, meant: ProcessRole) -> None:
    assert parse_role(role) == meant
    assert engine_of_role(role) == meant.engine


def test_ranks_count_shards_within_stages_of_the_same_engine() -> None:
    roles = [f"Worker_DP{n}_TP{t}_PP{p}" for n in (0, 1) for p in range(2) for t in range(3)]
    assert [rank_of(role, roles) for role in roles] == [0, 1, 2, 3, 4, 5] * 2
    mixed = [*roles, "Worker_DP2_TP0_PP0", "Worker_DP2_TP0_PP1", "EngineCore_DP2"]
    assert [rank_of(role, mixed) for role in mixed[-3:]] == [0, 1, -1]


def test_a_worker_of_the_first_stage_has_the_rank_of_its_shard() -> None:
    assert [rank_of(role) for role in ("Worker_TP3", "Worker_TP3_PP0", "APIServer_0")] == [3, 3, -1]

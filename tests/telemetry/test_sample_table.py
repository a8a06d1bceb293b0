"""The table of a capture: what each role's threads did, and the functions that most of its samples found."""

import pytest
from sample_sets import engine_samples

from vllm_obs.telemetry.sample_set import UNKNOWN, SampleSet
from vllm_obs.telemetry.sample_table import sample_table


def without_ran(samples: SampleSet) -> SampleSet:
    threads = [
        thread._replace(runs=[run._replace(num_ran=UNKNOWN, cpu_seconds=0.0) for run in thread.runs])
        for thread in samples.threads
    ]
    return samples._replace(threads=threads, sampler="py-spy")


def test_a_role_is_told_with_its_functions_and_threads() -> None:
    (role,) = sample_table([engine_samples()])
    processes = role.pop("processes")
    functions = {row.pop("function"): row for row in role.pop("functions")}
    assert role == {
        "role": "EngineCore",
        "num_samples": 10,
        "num_ran": 4,
        "cpu_seconds": pytest.approx(0.035),
        "knows_who_ran": True,
        "num_functions": 3,
        "num_threads": 2,
        "threads": [
            {"thread": "MainThread", "num_samples": 5, "num_ran": 4, "cpu_seconds": pytest.approx(0.035)},
            {"thread": "engine input", "num_samples": 5, "num_ran": 0, "cpu_seconds": 0.0},
        ],
    }
    assert list(functions) == ["EngineCore.step", "main", "Queue.get"]
    assert functions["EngineCore.step"] == {
        "file": "vllm_obs/engine/core.py",
        "self_samples": 4,
        "total_samples": 4,
        "self_ran": 4,
        "total_ran": 4,
        "self_cpu_seconds": pytest.approx(0.035),
        "total_cpu_seconds": pytest.approx(0.035),
    }
    assert (functions["main"]["self_samples"], functions["main"]["total_samples"]) == (0, 10)
    assert (functions["Queue.get"]["self_samples"], functions["Queue.get"]["self_ran"]) == (6, 0)
    assert [(row["role"], row["pid"], row["num_samples"], row["num_looks"]) for row in processes] == [
        ("EngineCore_DP0", 7, 10, 5)
    ]
    assert processes[0]["cost_seconds_per_look"] == pytest.approx(0.0001)
    assert processes[0]["cost_share"] == pytest.approx(0.01)


def test_ranks_of_a_role_are_summed() -> None:
    observer, worker = sample_table(
        [engine_samples("Worker_TP0"), engine_samples("Worker_TP1"), engine_samples("Observer")]
    )
    assert (observer["role"], worker["role"]) == ("Observer", "Worker")
    assert [row["role"] for row in worker["processes"]] == ["Worker_TP0", "Worker_TP1"]
    assert (worker["num_samples"], worker["functions"][0]["self_samples"]) == (20, 8)


def test_where_no_time_is_known_the_samples_give_the_order() -> None:
    (role,) = sample_table([without_ran(engine_samples())])
    assert (role["knows_who_ran"], role["num_ran"]) == (False, 0)
    assert [row["function"] for row in role["functions"]] == ["Queue.get", "EngineCore.step", "main"]


def test_the_rows_have_a_bound_and_say_so() -> None:
    (role,) = sample_table([engine_samples()], num_functions=1)
    assert (len(role["functions"]), role["num_functions"]) == (1, 3)

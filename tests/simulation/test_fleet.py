"""The fleet of benchmarks/balancer.py: every request is served in the time it must take, and load beats turns."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from vllm_obs.engine.balancer import BALANCER_NAMES
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.synthetic.step_time import StepTimeModel

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
NUM_ENGINES = 8


@pytest.fixture(scope="module")
def bench() -> Iterator[Any]:
    """benchmarks/balancer.py, whose neighbours it imports by their bare names."""
    before = sys.path[:]
    sys.path.insert(0, str(BENCHMARKS))
    yield import_module("balancer")
    sys.path[:] = before
    for name in ("balancer", "fleet", "arrivals"):
        del sys.modules[name]


@pytest.fixture(scope="module")
def arrivals(bench: Any) -> list[Any]:
    """Bursts of one kind and a steady flow of another, as recorded."""
    traces = [bench.read_trace(path, 300) for path in sorted(bench.TRACES.glob("*.csv"))]
    found: list[Any] = bench.overlaid(traces, 3, 0.0, 0)
    return found


def scene(bench: Any, **changes: Any) -> Any:
    limits = bench.Limits(64, 2048, 4, 0)
    usual = bench.Scene(NUM_ENGINES, 1, 0.0, 0.001, False, limits, StepTimeModel())
    return replace(usual, **changes)


@pytest.mark.parametrize("policy", ["oracle", *BALANCER_NAMES])
def test_every_request_is_served_and_none_in_less_than_it_takes_alone(
    bench: Any, arrivals: list[Any], policy: str
) -> None:
    alone = bench.alone(arrivals, scene(bench))
    for changes in ({}, {"num_clients": 3, "report_seconds": 0.5, "is_forgetful": True}):
        jobs = bench.Fleet(scene(bench, **changes), policy, 0).run(arrivals)
        assert [job.arrival for job in jobs] == arrivals
        for job, least in zip(jobs, alone, strict=True):
            assert job.num_prompt_left == 0
            assert job.arrival.at < job.first_token_at <= job.ended_at
            assert job.ended_at >= least.ended_at - 1e-9


def test_nothing_is_left_in_an_engine_and_its_work_was_counted(bench: Any, arrivals: list[Any]) -> None:
    fleet = bench.Fleet(scene(bench), "least_loaded", 0)
    fleet.run(arrivals)
    for engine in fleet._engines:
        assert engine.begin_step() is None
        assert engine.end_step(0.0)[:2] == (0, 0)
        assert (engine.num_prompt_left, engine.num_output_left, engine._num_context) == (0, 0, 0)


def test_a_step_takes_its_base_and_its_tokens_rows_and_context(bench: Any) -> None:
    (job,) = bench.alone([bench.Arrival(5.0, 3000, 2)], scene(bench))
    model = StepTimeModel()
    first = model.seconds(2048, 1, 0) + model.seconds(952, 1, 2048)
    assert job.first_token_at == pytest.approx(5.001 + first)
    assert job.ended_at == pytest.approx(5.001 + first + model.seconds(1, 1, 3000))


def test_load_beats_turns_at_the_tail_and_the_oracle_beats_both(bench: Any, arrivals: list[Any]) -> None:
    tails = {}
    for policy in ("oracle", "least_loaded", "round_robin"):
        jobs = bench.Fleet(scene(bench), policy, 0).run(arrivals)
        tails[policy] = bench.percentile(sorted(job.first_token_at - job.arrival.at for job in jobs), 99)
    assert tails["oracle"] <= tails["least_loaded"] < tails["round_robin"]


def test_a_prefix_that_an_engine_has_is_not_computed_again(bench: Any, arrivals: list[Any]) -> None:
    firsts = {}
    for num_tokens in (0, 512):
        limits = bench.Limits(64, 2048, 4, num_tokens)
        jobs = bench.Fleet(scene(bench, limits=limits), "prefix_affine", 0).run(arrivals)
        firsts[num_tokens] = sum(job.first_token_at - job.arrival.at for job in jobs)
    assert firsts[512] < firsts[0]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ours.csv", "arrived_seconds,prompt_tokens,output_tokens\n3.5,10,20\n4.25,1,2\n"),
        (
            "azure.csv",
            "TIMESTAMP,ContextTokens,GeneratedTokens\n"
            "2023-11-16 18:15:59.7500000,10,20\n2023-11-16 18:16:00.5000000,1,2\n",
        ),
        (
            "burstgpt.csv",
            "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
            "5,ChatGPT,10,20,30,API log\n5,ChatGPT,7,0,7,failed\n5.75,GPT-4,1,2,3,API log\n",
        ),
        (
            "mooncake.jsonl",
            '{"timestamp": 1000, "input_length": 10, "output_length": 20, "hash_ids": [0]}\n'
            '{"timestamp": 1750, "input_length": 1, "output_length": 2, "hash_ids": []}\n',
        ),
    ],
)
def test_traces_are_read_in_the_forms_they_are_published_in(
    bench: Any, tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / name).write_text(text)
    assert bench.read_trace(tmp_path / name, 10) == [bench.Arrival(0.0, 10, 20), bench.Arrival(0.75, 1, 2)]


def test_a_trace_of_another_form_is_refused_with_its_columns(bench: Any, tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("when,how much\n1,2\n")
    with pytest.raises(ConfigError, match="has columns when, how much"):
        bench.read_trace(tmp_path / "other.csv", 10)

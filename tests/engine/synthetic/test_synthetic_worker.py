"""SyntheticWorker: tokens that batching and preemption do not change, and time that goes by layer by layer."""

from typing import Any

import numpy as np
import pytest

from vllm_obs.engine.args import EngineArgs
from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.messages import SamplingSpec
from vllm_obs.engine.model_size import model_size
from vllm_obs.engine.plan import ModelRunnerOutput, NewRow, StepPlan
from vllm_obs.engine.synthetic.worker import SyntheticWorker, WorkerTime
from vllm_obs.engine.worker.limits import MachineLimits


class Clock:
    """Time that passes only in sleeps."""

    def __init__(self) -> None:
        self.now = 0
        self.sleeps: list[float] = []

    def read(self) -> int:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += round(seconds * 1e9)


def synthetic(**step_time: Any) -> VllmConfig:
    return EngineArgs(load_format="synthetic", model_loader_extra_config=step_time).create_engine_config()


def make_worker(**step_time: Any) -> tuple[SyntheticWorker, Clock, list[int]]:
    clock, layers = Clock(), []
    worker = SyntheticWorker(
        synthetic(**step_time), 1, lambda: layers.append(clock.now), WorkerTime(clock.read, clock.sleep)
    )
    return worker, clock, layers


def new_row(name: str, num_known: int, num_prompt: int = 0, num_computed: int = 0, **sampling: Any) -> NewRow:
    token_ids = np.arange(num_known, dtype=np.int32)
    spec = SamplingSpec(**{"seed": 7, "max_tokens": 50, **sampling})
    return NewRow(name, token_ids, num_prompt or num_known, spec, [0], num_computed)


def first_step(*rows: NewRow, tokens: list[int] | None = None, released: tuple[str, ...] = ()) -> StepPlan:
    scheduled = tokens or [len(row.token_ids) - row.num_computed_tokens for row in rows]
    return StepPlan(1, list(rows), [], [], [], [], scheduled, list(released))


def next_step(computed: dict[str, int], tokens: int = 1, step: int = 2) -> StepPlan:
    names, counts = list(computed), list(computed.values())
    return StepPlan(step, [], names, [[]] * len(names), counts, [-1] * len(names), [tokens] * len(names), [])


def run(worker: SyntheticWorker, plan: StepPlan) -> ModelRunnerOutput:
    worker.execute_model(plan)
    return worker.sample_tokens(None)


def said_by(worker: SyntheticWorker, num_prompt: int, num_tokens: int) -> list[int]:
    """What a sequence alone is answered."""
    tokens = run(worker, first_step(new_row("a", num_prompt))).token_ids
    for position in range(num_prompt, num_prompt + num_tokens - 1):
        tokens += run(worker, next_step({"a": position})).token_ids
    return tokens


def test_tokens_depend_on_seed_sequence_and_position_only() -> None:
    alone = said_by(make_worker()[0], 5, 6)
    worker, _, _ = make_worker()
    both = [run(worker, first_step(new_row("b", 3, seed=1), new_row("a", 5)))]
    both += [run(worker, next_step({"b": 3 + n, "a": 5 + n})) for n in range(2)]
    assert [output.token_ids[1] for output in both] == alone[:3]
    # Preempted after three tokens: it comes back with all that is known of it, in chunks.
    again = new_row("a", 8, num_prompt=5)
    assert run(worker, first_step(again, tokens=[6], released=("a",))).request_ids == []
    assert run(worker, next_step({"a": 6}, tokens=2)).token_ids == alone[3:4]
    assert run(worker, next_step({"a": 8})).token_ids == alone[4:5]
    assert len(set(alone)) > 3
    assert said_by(make_worker()[0], 5, 6) == alone


def test_a_step_takes_what_the_model_says_in_equal_layers() -> None:
    worker, clock, layers = make_worker(base_seconds=0.5, seconds_per_token=0.1, num_layers=4, seconds_per_row=0)
    output = run(worker, first_step(new_row("a", 3)))
    assert clock.now == pytest.approx(0.8e9, abs=2)
    assert layers == pytest.approx([0.2e9, 0.4e9, 0.6e9, 0.8e9], abs=4)
    (moments,) = output.moments
    assert moments == (1, 0, 0, clock.now, clock.now, clock.now)


def test_a_prefill_of_a_minute_moves_on_every_few_seconds() -> None:
    worker, clock, layers = make_worker(seconds_per_token=0.6, seconds_per_row=0, base_seconds=0)
    run(worker, first_step(new_row("a", 100)))
    assert clock.now == pytest.approx(60e9, abs=30)
    assert max(np.diff([0, *layers])) <= 2.6e9


def test_short_layers_are_waited_for_together() -> None:
    worker, clock, layers = make_worker(base_seconds=0.01, seconds_per_token=0, seconds_per_row=0, num_layers=24)
    run(worker, first_step(new_row("a", 3)))
    assert clock.now == pytest.approx(0.01e9, abs=2)
    assert len(layers) == 24
    assert len(clock.sleeps) == 5


def test_context_costs_time_and_a_plan_without_rows_none() -> None:
    worker, clock, _ = make_worker(
        base_seconds=0, seconds_per_token=0, seconds_per_row=0, seconds_per_context_token=0.001
    )
    run(worker, first_step(new_row("a", 50, num_computed=40)))
    assert clock.now == pytest.approx(0.04e9, abs=2)
    worker.execute_model(first_step(released=("a",)))
    assert clock.now == pytest.approx(0.04e9, abs=2)


def test_limits_are_those_of_the_made_up_device_and_none_where_nothing_takes_time() -> None:
    worker, _, _ = make_worker(seconds_per_token=0.001, base_seconds=0.02)
    size, dtype = model_size(worker.config.model.architecture), worker.config.model.dtype
    assert worker.machine_limits([]) == MachineLimits(
        dtype, size.flops_per_token / 0.001, size.weight_bytes(dtype) / 0.02
    )
    worker, _, _ = make_worker(seconds_per_token=0, base_seconds=0)
    assert worker.machine_limits([]) == MachineLimits(dtype, 0.0, 0.0)


def test_a_rank_meets_the_others_before_it_samples_and_only_with_rows() -> None:
    met: list[int] = []
    worker = SyntheticWorker(synthetic(base_seconds=0), meet=met.append)
    worker.execute_model(first_step(new_row("a", 2)))
    assert met == [1]
    worker.execute_model(first_step(released=("a",)))
    assert met == [1]


def test_log_probabilities_are_finite_ordered_and_below_one() -> None:
    worker, _, _ = make_worker()
    output = run(worker, first_step(new_row("a", 4, logprobs=3, prompt_logprobs=2), new_row("b", 2)))
    ((name, sampled),), ((prompt_name, prompt),) = output.logprobs, output.prompt_logprobs
    assert (name, prompt_name) == ("a", "a")
    assert sampled.token_ids[0, :2].tolist() == [output.token_ids[0]] * 2
    assert sampled.token_ids.shape == sampled.logprobs.shape == (1, 4)
    assert prompt.token_ids[:, 0].tolist() == [1, 2, 3]
    assert prompt.logprobs.shape == (3, 3)
    for found in (sampled, prompt):
        assert np.isfinite(found.logprobs).all()
        assert (np.diff(found.logprobs[:, 1:], axis=1) < 0).all()
        assert (np.exp(found.logprobs[:, 1:]).sum(axis=1) < 1).all()
        assert (found.ranks == 1).all()


def test_only_allowed_tokens_are_said_where_a_request_names_some() -> None:
    worker, _, _ = make_worker()
    assert run(worker, first_step(new_row("a", 4, allowed_token_ids=(5,)))).token_ids == [5]


def test_a_step_that_broke_off_is_not_sampled() -> None:
    worker, _, _ = make_worker()
    with pytest.raises(RuntimeError, match="the forward pass did not finish"):
        worker.sample_tokens(None)

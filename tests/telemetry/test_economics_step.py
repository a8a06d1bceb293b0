"""A step's time is split to the nanosecond, in proportion to what each row costs by the model."""

from random import Random

import pytest
from fact_stream import FactStream

from vllm_obs.telemetry.economics_step import StepCost, split_ns
from vllm_obs.telemetry.records import EngineDescribed, StepPlanned


def described(**changes: object) -> EngineDescribed:
    (_, record), _ = FactStream().describe(**changes)
    assert isinstance(record, EngineDescribed)
    return record


def planned(num_tokens: list[int], num_computed: list[int]) -> StepPlanned:
    stream = FactStream()
    stream.submit("r-0")
    record = next(each for _, each in stream.step(["r-0"]) if isinstance(each, StepPlanned))
    ids = [f"r-{row}" for row in range(len(num_tokens))]
    return record._replace(request_ids=ids, num_scheduled_tokens=num_tokens, num_computed_tokens=num_computed)


def test_the_model_counts_weights_and_context_in_tokens() -> None:
    size = {"weight_bytes": 16_000, "flops_per_token": 16_000, "kv_bytes_per_token": 8}
    assert StepCost.of(described(device="cuda:0", **size)) == StepCost(200.0, 0.1)
    assert StepCost.of(described(device="cpu", **size)) == StepCost(20.0, 0.01)
    assert StepCost.of(described(flops_per_token=0)) == StepCost()


def test_a_row_pays_its_tokens_its_context_and_an_even_part_of_the_step() -> None:
    plan = planned([10, 1], [0, 99])
    assert StepCost(20.0, 0.5).weights(plan) == [10 + 10 + 5, 10 + 1 + 50]
    assert StepCost().weights(plan) == [10, 1]


@pytest.mark.parametrize(
    ("num_ns", "weights", "shares"),
    [
        (10, [1.0, 1.0, 1.0], [3, 3, 4]),
        (100, [1.0, 3.0], [25, 75]),
        (0, [1.0, 2.0], [0, 0]),
        (7, [5.0], [7]),
        (2, [1.0] * 4, [0, 1, 0, 1]),
    ],
)
def test_shares_are_whole_and_sum_exactly(num_ns: int, weights: list[float], shares: list[int]) -> None:
    assert split_ns(num_ns, weights) == shares


def test_no_share_is_negative_or_further_than_one_from_its_due() -> None:
    random = Random(7)
    for _ in range(200):
        num_ns = random.randint(0, 10**11)
        weights = [random.random() * 10 ** random.randint(-3, 6) + 1e-9 for _ in range(random.randint(1, 300))]
        shares = split_ns(num_ns, weights)
        due = [num_ns * weight / sum(weights) for weight in weights]
        assert sum(shares) == num_ns
        assert min(shares) >= 0
        assert max(abs(share - exact) for share, exact in zip(shares, due, strict=True)) <= 1.001

"""Prompts and moments are drawn from the seed."""

from itertools import islice, pairwise

import pytest

from vllm_obs.cli.bench.options import BenchOptions
from vllm_obs.cli.bench.workload import arrival_seconds, random_prompts


def prompts(seed: int, **kwargs: object) -> list[tuple[list[int], int]]:
    options = BenchOptions(random_input_len=20, random_output_len=8, **kwargs)
    return [tuple(prompt) for prompt in islice(random_prompts(options, seed), 30)]


def test_prompts_have_exact_lengths_and_ids_in_range() -> None:
    for token_ids, max_tokens in prompts(0, random_token_ids=(5, 9)):
        assert (len(token_ids), max_tokens) == (20, 8)
        assert set(token_ids) <= {5, 6, 7, 8}


def test_the_same_seed_gives_the_same_prompts_and_another_does_not() -> None:
    assert prompts(1) == prompts(1)
    assert prompts(1) != prompts(2)
    assert len({tuple(token_ids) for token_ids, _ in prompts(1)}) == 30


def test_a_shared_prefix_comes_on_top() -> None:
    found = [token_ids for token_ids, _ in prompts(1, random_prefix_len=7)]
    assert {len(token_ids) for token_ids in found} == {27}
    assert len({tuple(token_ids[:7]) for token_ids in found}) == 1
    assert len({tuple(token_ids[:8]) for token_ids in found}) > 1


def test_lengths_vary_within_the_ratio() -> None:
    found = prompts(1, random_range_ratio=0.5)
    lengths = {len(token_ids) for token_ids, _ in found}
    assert len(lengths) > 3
    assert min(lengths) >= 10
    assert max(lengths) <= 30
    assert {max_tokens for _, max_tokens in found} <= set(range(4, 13))


@pytest.mark.parametrize(("burstiness", "variation"), [(1.0, 1.0), (0.25, 2.0), (100.0, 0.1)])
def test_arrivals_have_the_rate_and_the_burstiness(burstiness: float, variation: float) -> None:
    moments = list(islice(arrival_seconds(50.0, burstiness, seed=3), 20_001))
    gaps = [later - earlier for earlier, later in pairwise(moments)]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert moments[0] == 0.0
    assert mean == pytest.approx(0.02, rel=0.05)
    assert deviation / mean == pytest.approx(variation, rel=0.1)

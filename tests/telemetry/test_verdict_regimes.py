"""Each synthetic regime gets its own verdict and no other, blends of two name both, and a calm load none."""

from itertools import combinations

import pytest
from verdict_run import simulated

NAMED = ("kv_pressure", "token_budget", "preemption_storm", "long_prefill", "stalled_rank")
REGIMES = ("calm", *NAMED)
PAIRS = tuple(combinations(NAMED, 2))
NUM_SEEDS = 10


def expected(*regimes: str) -> set[str]:
    return set(regimes) - {"calm"}


@pytest.mark.parametrize("regime", REGIMES)
def test_a_regime_is_told_from_the_others(regime: str) -> None:
    run = simulated([regime], seed=1)
    assert run.names() == expected(regime)
    document = run.verdict.document("1m", run.now)
    assert document["word"] == ("well" if regime == "calm" else regime)
    assert document["cannot_tell"] == []


@pytest.mark.parametrize("pair", PAIRS[::5])
def test_a_blend_names_both(pair: tuple[str, str]) -> None:
    assert expected(*pair) <= simulated(pair, seed=2).names()


@pytest.mark.long
@pytest.mark.parametrize("regime", [*REGIMES, "max_num_seqs"])
def test_a_regime_is_told_from_the_others_over_ten_seeds(regime: str) -> None:
    found = [simulated([regime], seed).names() for seed in range(NUM_SEEDS)]
    assert found == [expected(regime)] * NUM_SEEDS


@pytest.mark.long
@pytest.mark.parametrize("pair", PAIRS)
def test_blends_name_both_over_ten_seeds(pair: tuple[str, str]) -> None:
    found = [simulated(pair, seed).names() for seed in range(NUM_SEEDS)]
    assert [names for names in found if not expected(*pair) <= names] == []


@pytest.mark.long
@pytest.mark.parametrize("regime", NAMED)
def test_a_calm_load_beside_it_changes_nothing(regime: str) -> None:
    found = [simulated(["calm", regime], seed).names() for seed in range(3)]
    assert found == [expected(regime)] * 3

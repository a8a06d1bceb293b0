import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_obs.telemetry.ddsketch import MAX_BINS, RELATIVE_ERROR, DDSketch

FRACTIONS = (0.0, 0.01, 0.25, 0.5, 0.9, 0.99, 1.0)
seconds = st.floats(min_value=1e-9, max_value=1e6)


def sketch_of(values: list[float]) -> DDSketch:
    sketch = DDSketch()
    for value in values:
        sketch.observe(value)
    return sketch


def nearest_rank(fraction: float, num_values: int) -> int:
    return max(1, math.ceil(Fraction(str(fraction)) * num_values))


@given(st.lists(seconds, min_size=1, max_size=200))
def test_quantiles_are_within_one_per_cent(values: list[float]) -> None:
    sketch = sketch_of(values)
    for fraction in FRACTIONS:
        exact = sorted(values)[nearest_rank(fraction, len(values)) - 1]
        assert sketch.quantile(fraction) == pytest.approx(exact, rel=RELATIVE_ERROR * 1.000001)


@given(st.lists(seconds, max_size=50), st.lists(seconds, max_size=50))
def test_merging_is_the_same_as_seeing_everything(some: list[float], others: list[float]) -> None:
    merged = sketch_of(some)
    merged.merge(sketch_of(others))
    whole = sketch_of(some + others)
    assert (merged.bins, merged.num_zeros, merged.greatest) == (whole.bins, whole.num_zeros, whole.greatest)
    assert merged.total == pytest.approx(whole.total)


def test_of_few_values_a_high_quantile_is_the_greatest() -> None:
    sketch = sketch_of([0.360, 0.972])
    assert [sketch.quantile(fraction) for fraction in (0.95, 0.99, 1.0)] == [0.972] * 3
    assert sketch.quantile(0.5) == pytest.approx(0.360, rel=RELATIVE_ERROR)


@pytest.mark.parametrize(("fraction", "rank"), [(0.07, 7), (0.5, 50), (0.95, 95), (0.99, 99), (0.991, 100)])
def test_a_quantile_is_the_value_of_the_nearest_rank(fraction: float, rank: int) -> None:
    sketch = sketch_of([float(number) for number in range(1, 101)])
    assert sketch.quantile(fraction) == pytest.approx(rank, rel=RELATIVE_ERROR)


def test_nothing_has_no_quantiles() -> None:
    assert [DDSketch().quantile(fraction) for fraction in FRACTIONS] == [0.0] * len(FRACTIONS)


def test_zeros_are_the_lowest_values() -> None:
    sketch = sketch_of([0.0, 0.0, 0.0, 5.0])
    assert sketch.quantile(0.5) == 0.0
    assert sketch.quantile(1.0) == pytest.approx(5.0, rel=RELATIVE_ERROR)
    assert sketch.num_observed == 4


def test_bins_have_a_bound_and_the_tail_keeps_its_precision() -> None:
    values = [1.03**number * 1e-9 for number in range(3000)]
    sketch = sketch_of(values)
    assert len(sketch.bins) == MAX_BINS
    assert sketch.num_observed == len(values)
    assert sketch.quantile(0.99) == pytest.approx(values[nearest_rank(0.99, 3000) - 1], rel=RELATIVE_ERROR)
    sketch.merge(sketch_of([1e-9 * 2.0**-number for number in range(1)]))
    assert len(sketch.bins) == MAX_BINS


def test_a_state_gives_the_same_sketch() -> None:
    sketch = sketch_of([0.0, 0.1, 0.2, 30.0])
    assert DDSketch.of(sketch.state()).state() == sketch.state()
    with pytest.raises(ValueError, match="zip"):
        DDSketch.of([[1, 2], [3], 0, 0.0, 0.0])

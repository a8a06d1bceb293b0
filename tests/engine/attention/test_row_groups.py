"""How decode rows are put together."""

from hypothesis import given
from hypothesis import strategies as st

from vllm_obs.engine.attention.row_groups import group_rows


def test_no_rows_make_no_groups() -> None:
    assert group_rows([], 10) == []


def test_rows_of_one_length_stay_in_order_up_to_the_budget() -> None:
    assert group_rows([3] * 8, 12) == [range(0, 4), range(4, 8)]


def test_rows_that_make_one_group_stay_in_order() -> None:
    assert group_rows([5, 9, 5], 100) == [range(0, 3)]


def test_a_single_row_may_exceed_the_budget() -> None:
    assert group_rows([50], 10) == [range(0, 1)]


def test_one_long_row_does_not_pad_the_short_ones() -> None:
    sizes = [2] * 5 + [500] + [2] * 5
    assert group_rows(sizes, 6000) == [[5], [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]]


@given(st.lists(st.integers(1, 600), max_size=60), st.integers(1, 800))
def test_every_row_is_in_one_group_within_budget_and_little_is_wasted(sizes: list[int], budget: int) -> None:
    groups = [list(rows) for rows in group_rows(sizes, budget)]
    assert sorted(row for rows in groups for row in rows) == list(range(len(sizes)))
    for rows in groups:
        assert len(rows) == 1 or len(rows) * max(sizes[row] for row in rows) <= budget
    gathered = sum(len(rows) * max(sizes[row] for row in rows) for rows in groups)
    assert gathered <= 2 * sum(sizes)

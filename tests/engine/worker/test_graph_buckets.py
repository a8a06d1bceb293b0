"""Graphs have the sizes that waste little; a step takes the smallest with room, or runs eagerly and says why."""

import pytest

from vllm_obs.engine.worker.graph_buckets import bucket_sizes, choose_graph


@pytest.mark.parametrize("max_num_rows", [1, 2, 3, 8, 13, 128, 200, 256, 1000])
def test_sizes_rise_to_the_largest_batch_and_waste_little(max_num_rows: int) -> None:
    sizes = bucket_sizes(max_num_rows)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == max_num_rows
    for num_rows in range(1, max_num_rows + 1):
        use = choose_graph(num_rows, 1, sizes)
        assert use.is_graph
        assert use.bucket == num_rows + use.num_padded
        assert use.num_padded < max(8, num_rows / 8)


def test_sizes_that_are_asked_for_are_those_that_a_step_can_have() -> None:
    assert bucket_sizes(16, [32, 4, 8, 4]) == [4, 8]


def test_a_batch_that_fits_a_size_is_not_padded() -> None:
    assert choose_graph(8, 1, [1, 2, 4, 8])[:2] == (8, 0)
    assert choose_graph(3, 1, {8: "", 4: "", 1: ""})[:2] == (4, 1)


@pytest.mark.parametrize(
    ("num_rows", "max_query_len", "captured", "reason"),
    [
        (4, 2, [4], "prompt_tokens"),
        (9, 1, [4, 8], "batch_size"),
        (1, 1, [], "capture_failed"),
    ],
)
def test_other_steps_run_eagerly(num_rows: int, max_query_len: int, captured: list[int], reason: str) -> None:
    use = choose_graph(num_rows, max_query_len, captured)
    assert use == (0, 0, reason)
    assert not use.is_graph

"""Vectors are cut, brought to length one and compared as they should be."""

import numpy as np
import pytest

from vllm_obs.engine.pooling.vectors import cosines, finished


def test_a_vector_is_cut_before_it_is_brought_to_length_one() -> None:
    vector = np.array([3, 4, 12], np.float32)
    assert finished(vector, normalize=False).tolist() == [3, 4, 12]
    assert finished(vector, normalize=True, dimensions=2).tolist() == pytest.approx([0.6, 0.8])
    assert finished(vector, normalize=True).dtype == np.float32


def test_zeros_stay_zeros_and_are_like_nothing() -> None:
    zeros, ones = np.zeros(3, np.float32), np.ones(3, np.float32)
    assert finished(zeros, normalize=True).tolist() == [0, 0, 0]
    assert cosines([zeros], [ones, zeros]) == [0.0, 0.0]


def test_one_vector_is_compared_with_all_or_each_with_its_own() -> None:
    x, y = np.array([1, 0], np.float32), np.array([0, 2], np.float32)
    assert cosines([x], [x, y, -x]) == [1.0, 0.0, -1.0]
    assert cosines([x, y], [y, y]) == [0.0, 1.0]


def test_rounding_makes_nothing_more_alike_than_itself() -> None:
    vectors = list(np.random.default_rng(0).normal(size=(200, 7)).astype(np.float32))
    assert max(cosines(vectors, vectors)) == 1.0
    assert min(cosines(vectors, [-vector for vector in vectors])) == -1.0

"""The draw is a pure function of (seed + sequence index, position), and uniform."""

import numpy as np
import pytest

from vllm_obs.engine.sampling.draw import splitmix64, uniforms


def words(*values: int) -> np.ndarray:
    return np.array(values, np.uint64)


def test_splitmix64_gives_the_published_sequence() -> None:
    outputs = splitmix64(np.full(5, 1234567, np.uint64), np.arange(5, dtype=np.uint64))
    assert outputs.tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_numbers_of_a_seed_never_change_between_versions() -> None:
    drawn = uniforms(words(0, 0, 42, 2**64 - 1), words(0, 1, 0, 3), words(5, 5, 1000, 7))
    assert drawn.tolist() == [0.3150901965850199, 0.8453660391206353, 0.8339543054992705, 0.3463383045902477]


def test_a_sequence_draws_as_the_first_one_of_its_seed_and_index() -> None:
    drawn = uniforms(words(7, 7, 7, 2**64 - 1), words(0, 1, 2, 1), words(9, 9, 9, 9))
    assert drawn.tolist() == uniforms(words(7, 8, 9, 0), words(0, 0, 0, 0), words(9, 9, 9, 9)).tolist()


def test_a_number_does_not_depend_on_the_rest_of_the_batch() -> None:
    seeds, indices, positions = (np.arange(100, dtype=np.uint64) * np.uint64(k) for k in (7919, 3, 11))
    together = uniforms(seeds, indices, positions)
    alone = [uniforms(seeds[i : i + 1], indices[i : i + 1], positions[i : i + 1])[0] for i in range(100)]
    assert together.tolist() == alone


@pytest.mark.parametrize("varied", ["seed", "sequence", "position"])
def test_numbers_are_uniform_and_unrelated_along_each_argument(varied: str) -> None:
    count, bins = 20_000, 50
    steps, still = np.arange(count, dtype=np.uint64), np.full(count, 3, np.uint64)
    drawn = uniforms(*(steps if varied == name else still for name in ("seed", "sequence", "position")))
    assert drawn.min() >= 0.0
    assert drawn.max() < 1.0
    observed = np.bincount((drawn * bins).astype(int), minlength=bins)
    chi_square = float(((observed - count / bins) ** 2).sum() / (count / bins))
    assert chi_square < 86  # 49 degrees of freedom: 0.1 %
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.025


def test_sequences_of_one_seed_differ() -> None:
    steps = np.arange(1000, dtype=np.uint64)
    still = np.full(1000, 3, np.uint64)
    first, second = uniforms(still, still * np.uint64(0), steps), uniforms(still, still, steps)
    assert not np.any(first == second)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.1

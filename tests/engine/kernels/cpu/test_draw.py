"""The draw kernel against numpy in float64: the same tokens, whatever a mask leaves and however long a row is."""

import numpy as np
import numpy.typing as npt
import pytest

from vllm_obs.engine.kernels.cpu.draw import Draw
from vllm_obs.engine.kernels.cpu.jit import Machine

SIZES = [1, 15, 128, 129, 1000, 4096]
NUM_ROWS = 24


def drawn_by_hand(
    logits: npt.NDArray[np.float32], temperatures: npt.NDArray[np.float32], uniforms: npt.NDArray[np.float64]
) -> list[int]:
    scaled = logits.astype(np.float64) / temperatures[:, None]
    upto = np.exp(scaled - scaled.max(1, keepdims=True)).cumsum(1)
    return [int(np.searchsorted(row, u * row[-1], side="right")) for row, u in zip(upto, uniforms, strict=True)]


def random_rows(
    vocab_size: int, spread: float = 3.0
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], npt.NDArray[np.float64]]:
    random = np.random.default_rng(vocab_size)
    logits = (spread * random.normal(size=(NUM_ROWS, vocab_size))).astype(np.float32)
    return logits, random.uniform(0.2, 2.0, NUM_ROWS).astype(np.float32), random.random(NUM_ROWS)


def words_of(is_allowed: npt.NDArray[np.bool_]) -> npt.NDArray[np.int32]:
    padded = np.pad(is_allowed, (0, -len(is_allowed) % 32))
    return np.packbits(padded, bitorder="little").view(np.int32)


@pytest.mark.parametrize("vocab_size", SIZES)
def test_tokens_are_drawn_by_their_weights(machine: Machine, vocab_size: int) -> None:
    logits, temperatures, uniforms = random_rows(vocab_size)
    rows, best = np.arange(NUM_ROWS), logits.argmax(1)
    before = logits.copy()
    drawn = Draw(machine).draw(logits, rows, temperatures, uniforms, best, {})
    assert drawn.tolist() == drawn_by_hand(logits, temperatures, uniforms)
    assert np.array_equal(logits, before)


@pytest.mark.parametrize("share", [0.001, 0.5, 1.0])
@pytest.mark.parametrize("vocab_size", SIZES)
def test_only_what_a_mask_allows_is_drawn(machine: Machine, vocab_size: int, share: float) -> None:
    logits, temperatures, uniforms = random_rows(vocab_size)
    random = np.random.default_rng(5)
    is_allowed = random.random((NUM_ROWS, vocab_size)) < share
    is_allowed[np.arange(NUM_ROWS), random.integers(0, vocab_size, NUM_ROWS)] = True
    is_allowed[::3] = True
    masks = {row: words_of(is_allowed[row]) for row in range(NUM_ROWS) if row % 3}
    drawn = Draw(machine).draw(logits, np.arange(NUM_ROWS), temperatures, uniforms, logits.argmax(1), dict(masks))
    masked = np.where(is_allowed, logits, np.float32(-np.inf))
    assert drawn.tolist() == drawn_by_hand(masked, temperatures, uniforms)


def test_a_row_is_drawn_the_same_wherever_it_is(machine: Machine) -> None:
    logits, temperatures, uniforms = random_rows(1000)
    draw, best = Draw(machine).draw, logits.argmax(1)
    rows = np.random.default_rng(1).permutation(NUM_ROWS)[:7]
    together = draw(logits, rows, temperatures[rows], uniforms[rows], best[rows], {})
    for place, row in enumerate(rows):
        one = slice(row, row + 1)
        alone = draw(logits[one], np.zeros(1, np.int64), temperatures[one], uniforms[one], best[one], {})
        assert alone[0] == together[place]


def test_far_below_an_excluded_best_there_is_a_choice_too(machine: Machine) -> None:
    logits = np.full((1, 300), -500.0, np.float32)
    logits[0, 7] = 1000.0
    is_allowed = np.zeros(300, np.bool_)
    is_allowed[[40, 290]] = True
    args = (np.zeros(1, np.int64), np.ones(1, np.float32))
    for uniform, expected in ((0.25, 40), (0.75, 290)):
        drawn = Draw(machine).draw(logits, *args, np.array([uniform]), np.array([7]), {0: words_of(is_allowed)})
        assert drawn.tolist() == [expected]


@pytest.mark.parametrize("num_words", [0, 1, 5])
def test_beyond_a_narrow_mask_nothing_is_drawn(machine: Machine, num_words: int) -> None:
    logits, temperatures, uniforms = random_rows(1000)
    words = np.full(num_words, -1, np.int32)
    masks = dict.fromkeys(range(NUM_ROWS), words)
    drawn = Draw(machine).draw(logits, np.arange(NUM_ROWS), temperatures, uniforms, logits.argmax(1), masks)
    short = logits[:, : 32 * num_words]
    expected = drawn_by_hand(short, temperatures, uniforms) if num_words else [-1] * NUM_ROWS
    assert drawn.tolist() == expected


@pytest.mark.parametrize("value", [-np.inf, np.nan])
def test_a_row_without_a_possible_token_is_told_and_others_are_drawn(machine: Machine, value: float) -> None:
    logits = np.full((2, 200), value, np.float32)
    logits[1] = 0.0
    drawn = Draw(machine).draw(
        logits, np.arange(2), np.ones(2, np.float32), np.array([0.5, 0.5]), np.array([3, 3]), {}
    )
    assert drawn.tolist() == [-1, 100]


def test_no_rows_are_no_work(machine: Machine) -> None:
    none = np.empty(0, np.int64)
    drawn = Draw(machine).draw(np.ones((2, 32), np.float32), none, none.astype(np.float32), none * 0.5, none, {})
    assert drawn.tolist() == []


@pytest.mark.parametrize(("row", "best"), [(2, 0), (-1, 0), (0, 40), (0, -1)])
def test_it_refuses_to_read_outside(machine: Machine, row: int, best: int) -> None:
    rows, ones = np.array([row]), np.ones(1, np.float32)
    with pytest.raises(AssertionError):
        Draw(machine).draw(np.ones((2, 40), np.float32), rows, ones, np.array([0.5]), np.array([best]), {})

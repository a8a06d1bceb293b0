"""Bans, biases, allowed tokens and grammar masks touch the logits they name and no others."""

import numpy as np
import pytest
import torch

from vllm_obs.engine.messages import SamplingSpec
from vllm_obs.engine.sampling import constraints
from vllm_obs.engine.sampling.constraints import (
    RowConstraints,
    TokenEdits,
    allow_only,
    apply_bitmask,
    banned_by_bad_words,
)

INF = float("inf")


def possible(row: torch.Tensor) -> list[int]:
    return torch.nonzero(row > -INF).flatten().tolist()


def test_ids_outside_the_vocabulary_are_left_out() -> None:
    spec = SamplingSpec(
        stop_token_ids=(3, 10),
        eos_token_ids=(9, -1),
        logit_bias=((2, 1.0), (10, 5.0)),
        allowed_token_ids=(4, 11, 4),
    )
    constraints = RowConstraints.of(spec, 10)
    assert constraints.ending_ids.tolist() == [3, 9]
    assert constraints.bias_ids.tolist() == [2]
    assert constraints.allowed_ids.tolist() == [4]


def test_edits_of_several_rows_are_applied_together() -> None:
    logits = torch.zeros(3, 6)
    edits = TokenEdits()
    edits.bias(0, np.array([1, 5]), np.array([2.0, -3.0], np.float32))
    edits.ban(2, np.array([0, 1]))
    edits.bias(2, np.array([1, 2]), np.array([100.0, 1.0], np.float32))
    edits.apply(logits)
    assert logits.tolist() == [[0, 2, 0, 0, 0, -3], [0] * 6, [-INF, -INF, 1, 0, 0, 0]]


def test_no_edits_leave_the_logits_alone() -> None:
    logits = torch.ones(1, 3)
    TokenEdits().apply(logits)
    assert logits.tolist() == [[1, 1, 1]]


def test_only_allowed_tokens_keep_their_logits() -> None:
    logits = torch.arange(8.0).reshape(2, 4)
    allow_only(logits, 1, np.array([0, 3]))
    assert logits.tolist() == [[0, 1, 2, 3], [4, -INF, -INF, 7]]


def test_bad_words_ban_their_last_token_after_their_beginning() -> None:
    words = ((7,), (1, 2), (1, 2, 3), (5, 5, 5, 5))

    def banned(*output: int) -> list[int]:
        return banned_by_bad_words(words, np.array(output, np.int32)).tolist()

    assert banned() == [7]
    assert banned(1) == [2, 7]
    assert banned(1, 2) == [3, 7]
    assert banned(2, 1) == [2, 7]
    assert banned(5, 5) == [7]
    assert banned(9, 5, 5, 5) == [5, 7]


@pytest.fixture(params=["kernel", "torch"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks as they are applied here, and as they are where there is no kernel."""
    if request.param == "torch":
        monkeypatch.setattr(constraints, "_bitmask_kernel", lambda: None)


@pytest.mark.usefixtures("either")
def test_bitmask_allows_the_tokens_whose_bits_are_set() -> None:
    logits = torch.zeros(3, 70)
    bitmask = np.zeros((2, 3), np.int32)
    for row, token in ((0, 0), (0, 31), (0, 32), (0, 69), (1, 5)):
        bitmask[row, token // 32] |= np.array(1 << token % 32, np.uint32).astype(np.int32)
    apply_bitmask(logits, [2, 0], bitmask)
    assert possible(logits[2]) == [0, 31, 32, 69]
    assert possible(logits[0]) == [5]
    assert possible(logits[1]) == list(range(70))


@pytest.mark.usefixtures("either")
def test_tokens_beyond_a_narrow_bitmask_are_not_allowed() -> None:
    logits = torch.zeros(1, 40)
    apply_bitmask(logits, [0], np.full((1, 1), -1, np.int32))
    assert possible(logits[0]) == list(range(32))


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 100, 512])
@pytest.mark.parametrize("num_words", [1, 4, 16])
def test_the_kernel_and_torch_do_the_same(
    vocab_size: int, num_words: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(vocab_size)
    bitmask = random.integers(-(2**31), 2**31, (3, num_words)).astype(np.int32)
    bitmask[random.random(bitmask.shape) < 0.6] = -1
    first = torch.from_numpy(random.normal(size=(4, vocab_size)).astype(np.float32))
    second = first.clone()
    apply_bitmask(first, [3, 0, 2], bitmask)
    monkeypatch.setattr(constraints, "_bitmask_kernel", lambda: None)
    apply_bitmask(second, [3, 0, 2], bitmask)
    assert torch.equal(first, second)

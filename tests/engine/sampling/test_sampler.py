"""A batch is sampled as each of its rows alone would be, and every feature does what it says."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from vllm_obs.engine import faults
from vllm_obs.engine.messages import SamplingSpec
from vllm_obs.engine.plan import GrammarMasks
from vllm_obs.engine.sampling import choice
from vllm_obs.engine.sampling.columns import SamplingBatch
from vllm_obs.engine.sampling.sampler import sample

VOCAB = 600
FEATURES = {
    "greedy": SamplingSpec(temperature=0.0),
    "temperature": SamplingSpec(temperature=0.8, seed=1),
    "hot": SamplingSpec(temperature=3.0, seed=-5, sequence_index=2),
    "top_k": SamplingSpec(top_k=7, seed=2),
    "top_p": SamplingSpec(top_p=0.8, seed=3),
    "min_p": SamplingSpec(min_p=0.05, seed=4),
    "all filters": SamplingSpec(temperature=1.3, top_k=40, top_p=0.9, min_p=0.01, seed=2**63 + 5),
    "repetition": SamplingSpec(repetition_penalty=1.4, seed=6),
    "presence": SamplingSpec(temperature=0.0, presence_penalty=1.5),
    "frequency": SamplingSpec(frequency_penalty=0.7, top_p=0.9, seed=7),
    "bias": SamplingSpec(temperature=0.0, logit_bias=((5, 100.0), (6, 1.0))),
    "allowed": SamplingSpec(allowed_token_ids=(3, 50, 599), seed=8),
    "bad words": SamplingSpec(bad_words_ids=((4,), (2, 9)), seed=9, logprobs=5),
    "min_tokens": SamplingSpec(min_tokens=9, eos_token_ids=(1,), stop_token_ids=(2, 3), seed=10),
    "logprobs": SamplingSpec(seed=11, logprobs=20),
    "greedy logprobs": SamplingSpec(temperature=0.0, logprobs=0),
}
BatchMaker = Callable[..., SamplingBatch]


def random_logits(num_rows: int, seed: int = 0, spread: float = 3.0) -> torch.Tensor:
    random = np.random.default_rng(seed)
    return torch.from_numpy((random.normal(size=(num_rows, VOCAB)) * spread).astype(np.float32))


def histories(num_rows: int) -> tuple[list[list[int]], list[list[int]]]:
    random = np.random.default_rng(1)
    prompts = [random.integers(0, VOCAB, 1 + row).tolist() for row in range(num_rows)]
    outputs = [random.integers(0, 12, row % 5).tolist() for row in range(num_rows)]
    return prompts, outputs


@pytest.mark.parametrize("seed", range(4))
def test_a_mixed_batch_gives_each_row_what_it_gets_alone(make_batch: BatchMaker, seed: int) -> None:
    specs = [spec for spec in FEATURES.values() for _ in range(2)]
    order = np.random.default_rng(seed).permutation(len(specs))
    specs = [specs[place] for place in order]
    prompts, outputs = histories(len(specs))
    logits = random_logits(len(specs), seed)
    together = sample(logits.clone(), make_batch(specs, VOCAB, prompts, outputs), None)
    assert not together.failed
    named = dict(together.logprobs)
    for row, spec in enumerate(specs):
        batch = make_batch([spec], VOCAB, [prompts[row]], [outputs[row]])
        alone = sample(logits[row : row + 1].clone(), batch, None)
        assert alone.token_ids == [together.token_ids[row]], spec
        assert (spec.logprobs is None) == (f"r{row}" not in named)
        for _, expected in alone.logprobs:
            assert expected.token_ids.shape == (1, spec.logprobs + 1)
            for columns in zip(expected, named[f"r{row}"], strict=True):
                np.testing.assert_allclose(*columns, atol=1e-6)


def test_the_accelerator_path_draws_the_same_tokens(
    make_batch: BatchMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = [SamplingSpec(temperature=0.9, top_k=k, top_p=p, seed=k) for k in (0, 3, 50) for p in (0.5, 0.95)]
    logits = random_logits(6)
    batch = make_batch(specs, VOCAB)
    on_cpu = sample(logits.clone(), batch, None).token_ids
    monkeypatch.setattr(choice, "_draw_filtered", choice._draw_sorted)
    assert sample(logits.clone(), batch, None).token_ids == on_cpu


def test_a_draw_depends_on_the_position_and_not_on_the_history(make_batch: BatchMaker) -> None:
    logits = random_logits(1).expand(3, -1)
    specs = [SamplingSpec(temperature=5.0, seed=3)] * 3
    batch = make_batch(specs, VOCAB, [[1, 2, 3], [9], [1]], [[], [8, 8], [8]])
    first, second, other = sample(logits.clone(), batch, None).token_ids
    assert first == second != other


@pytest.mark.parametrize(
    ("spec", "kept"),
    [
        (SamplingSpec(seed=1), 8),
        (SamplingSpec(temperature=0.5, seed=2), 8),
        (SamplingSpec(top_k=3, seed=3), 3),
        (SamplingSpec(top_p=0.8, seed=4), 4),
        (SamplingSpec(min_p=0.55, seed=5), 3),
    ],
)
def test_tokens_come_as_often_as_the_distribution_says(
    make_batch: BatchMaker, spec: SamplingSpec, kept: int
) -> None:
    shares = np.array([0.05, 0.3, 0.02, 0.2, 0.15, 0.08, 0.18, 0.02])
    count = 4_000
    logits = torch.from_numpy(np.log(shares).astype(np.float32)).expand(count, -1).clone()
    batch = make_batch([spec._replace(sequence_index=row) for row in range(count)], 8)
    observed = np.bincount(sample(logits, batch, None).token_ids, minlength=8)
    expected = shares ** (1 / spec.temperature)
    expected[np.argsort(-shares, kind="stable")[kept:]] = 0.0
    expected *= count / expected.sum()
    assert observed[expected == 0].sum() == 0
    nonzero = expected > 0
    chi_square = ((observed - expected)[nonzero] ** 2 / expected[nonzero]).sum()
    assert chi_square < 24.3  # 7 degrees of freedom: 0.1 %; fewer are stricter


def test_min_tokens_keeps_endings_away_until_reached(make_batch: BatchMaker) -> None:
    spec = SamplingSpec(temperature=0.0, min_tokens=2, eos_token_ids=(7,), stop_token_ids=(8,))
    logits = torch.zeros(3, VOCAB)
    logits[:, 7:10] = torch.tensor([5.0, 4.0, 3.0])
    batch = make_batch([spec] * 3, VOCAB, [[1, 1, 1]] * 3, [[], [9], [9, 9]])
    assert sample(logits, batch, None).token_ids == [9, 9, 7]


def test_grammar_masks_reach_their_rows_and_others_are_free(make_batch: BatchMaker) -> None:
    logits = random_logits(4)
    specs = [
        SamplingSpec(temperature=0.0, logprobs=1),
        SamplingSpec(seed=1),
        SamplingSpec(top_k=5),
        SamplingSpec(),
    ]
    best = logits.argmax(-1).tolist()
    free = sample(logits.clone(), make_batch(specs, VOCAB), None).token_ids
    bitmask = np.zeros((4, (VOCAB + 31) // 32), np.int32)
    bitmask[:, 3] = 1 << 4
    masks = GrammarMasks(["r2", "unknown", "r0", "r1"], bitmask)
    sampled = sample(logits.clone(), make_batch(specs, VOCAB), masks)
    assert sampled.token_ids == [100, 100, 100, free[3]]
    (_, raw), *_ = sampled.logprobs
    assert raw.token_ids[0].tolist() == [100, best[0]]
    assert raw.logprobs[0, 0] == pytest.approx(torch.log_softmax(logits[0], -1)[100].item(), abs=1e-5)


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("num_others", [1, 2, 9])
def test_rows_that_draw_from_all_tokens_do_so_whoever_is_beside_them(
    make_batch: BatchMaker, num_others: int, is_compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By torch, beside few others all rows are gone through, beside many those alone."""
    if not is_compiled:
        monkeypatch.setattr(choice, "_draw_kernel", lambda: None)
    drawing = [SamplingSpec(temperature=0.5 + row / 4, seed=row) for row in range(7)]
    others = [SamplingSpec(temperature=0.0) if row % 2 else SamplingSpec(seed=row) for row in range(num_others)]
    logits = random_logits(len(drawing) + num_others)
    bitmask = np.zeros((num_others, (VOCAB + 31) // 32), np.int32)
    bitmask[:, 3] = 1 << 4
    masks = GrammarMasks([f"r{len(drawing) + row}" for row in range(num_others)], bitmask)
    together = sample(logits.clone(), make_batch(drawing + others, VOCAB), masks)
    alone = sample(logits[: len(drawing)].clone(), make_batch(drawing, VOCAB), None)
    assert together.token_ids == alone.token_ids + [100] * num_others
    assert together.failed == []


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("share", [0.01, 0.5, 0.98])
def test_a_mask_chooses_as_if_other_tokens_were_impossible(
    make_batch: BatchMaker, share: float, is_compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_compiled:
        monkeypatch.setattr(choice, "_draw_kernel", lambda: None)
    specs = list(FEATURES.values())
    prompts, outputs = histories(len(specs))
    logits, batch = random_logits(len(specs)), make_batch(specs, VOCAB, prompts, outputs)
    is_allowed = np.random.default_rng(2).random((len(specs), -(-VOCAB // 32) * 32)) < share
    is_allowed[:, [3, 50, 599]] = True
    bitmask = np.packbits(is_allowed, axis=1, bitorder="little").view(np.int32)
    by_hand = torch.where(torch.from_numpy(is_allowed[:, :VOCAB]), logits, -torch.inf)
    expected = sample(by_hand, batch, None)
    sampled = sample(logits, batch, GrammarMasks(batch.request_ids[::-1], bitmask[::-1]))
    assert (sampled.token_ids, sampled.failed) == (expected.token_ids, [])


@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_mask_without_a_possible_token_fails_its_row_alone(
    make_batch: BatchMaker, is_compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_compiled:
        monkeypatch.setattr(choice, "_draw_kernel", lambda: None)
    kinds = (SamplingSpec(temperature=0.0, logprobs=1), SamplingSpec(seed=1, logprobs=1))
    specs = [spec for spec in kinds for _ in range(3)]
    logits = torch.zeros(6, VOCAB)
    logits[1::3, 7] = -torch.inf
    words = np.zeros((6, 19), np.int32)
    words[:, 0] = [0, 1 << 7, 1 << 9] * 2
    batch = make_batch(specs, VOCAB)
    sampled = sample(logits, batch, GrammarMasks(batch.request_ids, words))
    assert sampled.token_ids == [-1, -1, 9] * 2
    assert [(name, reason) for name, reason, _ in sampled.failed] == [
        (f"r{row}", "invalid_value") for row in (0, 1, 3, 4)
    ]
    assert [name for name, _ in sampled.logprobs] == ["r2", "r5"]


@pytest.mark.parametrize("vocab_size", [17, VOCAB, 4096])
def test_with_and_without_a_kernel_the_same_tokens_are_drawn(
    make_batch: BatchMaker, vocab_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(vocab_size)
    logits = torch.from_numpy((3 * random.normal(size=(40, vocab_size))).astype(np.float32))
    specs = [SamplingSpec(temperature=0.2 + row / 20, seed=row) for row in range(40)]
    batch = make_batch(specs, vocab_size)
    compiled = sample(logits.clone(), batch, None).token_ids
    monkeypatch.setattr(choice, "_draw_kernel", lambda: None)
    assert sample(logits.clone(), batch, None).token_ids == compiled


def test_a_mask_that_is_too_short_allows_no_token_beyond_it(make_batch: BatchMaker) -> None:
    logits = torch.arange(2.0 * VOCAB).reshape(2, VOCAB)
    specs = [SamplingSpec(temperature=0.0), SamplingSpec(seed=1)]
    masks = GrammarMasks(["r0", "r1"], np.array([[1 << 5], [1 << 6]], np.int32))
    assert sample(logits, make_batch(specs, VOCAB), masks).token_ids == [5, 6]


def test_a_grammar_that_only_allows_the_end_comes_before_min_tokens(make_batch: BatchMaker) -> None:
    spec = SamplingSpec(temperature=0.0, min_tokens=5, eos_token_ids=(7,))
    bitmask = np.zeros((2, (VOCAB + 31) // 32), np.int32)
    bitmask[:, 0] = [1 << 7, 1 << 7 | 1 << 9]
    logits = torch.zeros(2, VOCAB)
    logits[:, 7] = 5.0
    sampled = sample(logits, make_batch([spec] * 2, VOCAB), GrammarMasks(["r0", "r1"], bitmask))
    assert (sampled.token_ids, sampled.failed) == ([7, 9], [])


def test_logprobs_are_the_model_s_own_before_any_processing(make_batch: BatchMaker) -> None:
    logits = random_logits(1)
    spec = SamplingSpec(
        temperature=0.3, top_k=1, logit_bias=((17, 50.0),), repetition_penalty=2.0, seed=1, logprobs=2
    )
    ((_, found),) = sample(logits.clone(), make_batch([spec], VOCAB, [[17]]), None).logprobs
    expected = torch.log_softmax(logits[0], -1)
    assert found.token_ids[0, 0] == 17
    assert found.logprobs[0].tolist() == pytest.approx(expected[found.token_ids[0]].tolist(), abs=1e-5)
    assert found.ranks[0] == 1 + int((expected > expected[17]).sum())


@pytest.mark.parametrize("poison", [math.nan, math.inf, "all impossible"])
def test_a_row_that_is_not_finite_fails_alone(make_batch: BatchMaker, poison: float | str) -> None:
    specs = list(FEATURES.values())
    prompts, outputs = histories(len(specs))
    logits = random_logits(len(specs))
    expected = sample(logits.clone(), make_batch(specs, VOCAB, prompts, outputs), None)
    for row in range(len(specs)):
        poisoned = logits.clone()
        poisoned[row] = -math.inf if isinstance(poison, str) else poisoned[row]
        poisoned[row, 77] = -math.inf if isinstance(poison, str) else poison
        sampled = sample(poisoned, make_batch(specs, VOCAB, prompts, outputs), None)
        assert sampled.token_ids == [-1 if i == row else t for i, t in enumerate(expected.token_ids)]
        assert sampled.failed == [
            (f"r{row}", "invalid_logits", "the model's logits for the next token are not finite")
        ]
        assert [name for name, _ in sampled.logprobs] == [n for n, _ in expected.logprobs if n != f"r{row}"]


def test_constraints_that_leave_no_token_fail_their_row_alone(make_batch: BatchMaker) -> None:
    specs = [SamplingSpec(seed=1), SamplingSpec(allowed_token_ids=(4,), bad_words_ids=((4,),), seed=2, logprobs=1)]
    logits = random_logits(2)
    alone = sample(logits[:1].clone(), make_batch(specs[:1], VOCAB), None).token_ids
    sampled = sample(logits.clone(), make_batch(specs, VOCAB), None)
    assert sampled.token_ids == [*alone, -1]
    assert sampled.logprobs == []
    assert sampled.failed == [("r1", "invalid_value", "the request's constraints leave no possible next token")]


def test_a_planted_fault_breaks_the_named_request_s_row(
    make_batch: BatchMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "_FAULTS", {"logits": ("raise", "r1")})
    sampled = sample(random_logits(3), make_batch([SamplingSpec(seed=1)] * 3, VOCAB), None)
    assert [name for name, _, _ in sampled.failed] == ["r1"]
    assert sampled.token_ids[1] == -1
    assert min(sampled.token_ids[0], sampled.token_ids[2]) >= 0


def test_a_tiny_temperature_is_greedy(make_batch: BatchMaker) -> None:
    logits = random_logits(2)
    specs = [SamplingSpec(temperature=1e-6, top_p=0.5), SamplingSpec(temperature=1e-5, seed=3)]
    assert sample(logits.clone(), make_batch(specs, VOCAB), None).token_ids == logits.argmax(-1).tolist()

"""Penalties follow their formulas, from counts that are kept token by token."""

import numpy as np
import pytest
import torch

from vllm_obs.engine.sampling.penalties import Penalties, SeenTokens, apply_penalties


def seen_of(prompt: list[int], output: list[int]) -> SeenTokens:
    return SeenTokens(np.array(prompt, np.int32), np.array(output, np.int32))


def counts_of(seen: SeenTokens) -> dict[int, float]:
    return dict(zip(seen.token_ids.tolist(), seen.counts.tolist(), strict=True))


def by_formula(
    logits: np.ndarray, penalty: tuple[float, float, float], prompt: list[int], output: list[int]
) -> list[float]:
    repetition, presence, frequency = penalty
    changed = []
    for token, value in enumerate(logits.tolist()):
        if token in prompt or token in output:
            value = value / repetition if value > 0 else value * repetition
        changed.append(value - frequency * output.count(token) - presence * (token in output))
    return changed


def test_tokens_added_one_by_one_count_as_those_given_at_once() -> None:
    random = np.random.default_rng(3)
    prompt, output = random.integers(0, 30, 20).tolist(), random.integers(0, 60, 200).tolist()
    seen = seen_of(prompt, output[:7])
    for token in output[7:]:
        seen.add(token)
    assert counts_of(seen) == counts_of(seen_of(prompt, output))
    assert counts_of(seen) == {token: output.count(token) for token in {*prompt, *output}}


def test_nothing_seen_changes_nothing() -> None:
    logits = torch.randn(1, 8)
    changed = logits.clone()
    apply_penalties(changed, [Penalties(0, 2.0, 1.0, 1.0, seen_of([], []))])
    assert torch.equal(changed, logits)


def test_penalties_follow_the_formula_row_by_row() -> None:
    random = np.random.default_rng(4)
    logits = random.normal(size=(4, 40)).astype(np.float32) * 4
    penalties = {0: (1.3, 0.0, 0.0), 1: (1.0, 0.7, 0.0), 3: (0.8, -0.5, 1.5)}
    prompts = {row: random.integers(0, 40, 6).tolist() for row in penalties}
    outputs = {row: random.integers(0, 12, 9).tolist() for row in penalties}
    changed = torch.from_numpy(logits.copy())
    apply_penalties(
        changed, [Penalties(row, *penalties[row], seen_of(prompts[row], outputs[row])) for row in penalties]
    )
    for row in range(4):
        expected = (
            by_formula(logits[row], penalties[row], prompts[row], outputs[row])
            if row in penalties
            else logits[row].tolist()
        )
        assert changed[row].tolist() == pytest.approx(expected, abs=1e-5)

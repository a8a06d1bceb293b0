"""Draws select the set and the token that the sampler's definition does, without a sort."""

import numpy as np
import torch
from guarded import Guarded
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kernel_cases import one_config

from vllm_obs.engine.kernels.triton.filtered_draw import DrawColumns, filtered_draw
from vllm_obs.engine.kernels.triton.sampling_reference import reference_draw, reference_weights


def _columns(num_rows: int) -> DrawColumns:
    """Every mix of filters: off, on, at their ends."""
    top_ks = torch.randint(1, 40, (num_rows,)) * (torch.rand(num_rows) < 0.6)
    top_ps = torch.where(torch.rand(num_rows) < 0.6, torch.rand(num_rows) * 0.98 + 0.01, 1.0)
    min_ps = torch.rand(num_rows) * 0.2 * (torch.rand(num_rows) < 0.4)
    temperatures = (torch.rand(num_rows) * 2 + 0.1) * (torch.rand(num_rows) < 0.9)
    seeds = torch.randint(-(2**63), 2**63 - 1, (num_rows,))
    numbers = torch.randint(0, 1 << 20, (2, num_rows))
    return DrawColumns(temperatures, top_ks.int(), top_ps, min_ps, seeds, numbers[0], numbers[1])


def _draw(logits: torch.Tensor, columns: DrawColumns, block_size: int = 128) -> tuple[torch.Tensor, torch.Tensor]:
    tokens, least = Guarded(len(logits), dtype=torch.int64), Guarded(len(logits), dtype=torch.float32)
    configs = one_config("filtered_draw", block_size=block_size)
    filtered_draw(logits, columns, tokens.tensor, least.tensor, configs).run()
    return tokens.whole(), least.whole()


def check(logits: torch.Tensor, columns: DrawColumns, block_size: int) -> None:
    """The token is the reference's, and so is the least weight that stays in."""
    tokens, least = _draw(logits.clone(), columns, block_size)
    assert tokens.tolist() == reference_draw(logits, columns).tolist()
    weights = reference_weights(logits, columns)
    smallest = torch.where(weights > 0, weights, 2.0).min(-1).values
    is_drawn = columns.temperatures > 0
    has_nucleus = is_drawn & (columns.top_ps < 1)
    near = (least / smallest - 1).abs() <= 1e-6
    bound_by_min_p = (least == columns.min_ps) & (smallest >= least)
    assert (near | bound_by_min_p)[has_nucleus].all()
    assert (least <= smallest * (1 + 1e-6))[is_drawn].all()


@settings(max_examples=4, deadline=None, database=None, derandomize=True)
@example(num_rows=4, vocab_size=129, block_size=64, spread=4.0)
@example(num_rows=2, vocab_size=2, block_size=512, spread=0.5)
@given(st.integers(1, 4), st.integers(2, 300), st.sampled_from([64, 512]), st.sampled_from([0.5, 4.0]))
def test_any_filters_draw_the_samplers_token(
    num_rows: int, vocab_size: int, block_size: int, spread: float
) -> None:
    check(torch.randn(num_rows, vocab_size) * spread, _columns(num_rows), block_size)


@settings(max_examples=2, deadline=None, database=None, derandomize=True)
@example(num_rows=4, vocab_size=65)
@given(st.integers(1, 4), st.integers(2, 200))
def test_ties_at_a_boundary_stay_in(num_rows: int, vocab_size: int) -> None:
    check(torch.randint(-3, 4, (num_rows, vocab_size)).float(), _columns(num_rows), 64)


def test_banned_tokens_are_never_drawn() -> None:
    logits = torch.full((3, 200), -torch.inf)
    logits[0, 7], logits[1, 199], logits[2, 0] = 1.0, -2.0, 0.0
    assert _draw(logits, _columns(3))[0].tolist() == [7, 199, 0]


def test_rows_without_a_finite_best_logit_have_no_token() -> None:
    logits = torch.randn(4, 150)
    logits[0], logits[1, 3], logits[2, 149] = -torch.inf, torch.inf, torch.nan
    tokens = _draw(logits, _columns(4))[0].tolist()
    assert tokens[:3] == [-1, -1, -1]
    assert tokens[3] >= 0


def test_a_rows_token_depends_on_nothing_but_the_row() -> None:
    logits, columns = torch.randn(3, 150), _columns(3)
    together = _draw(logits, columns)[0].tolist()
    alone = DrawColumns(*(getattr(columns, name)[1:2] for name in DrawColumns.__dataclass_fields__))
    assert _draw(logits[1:2], alone)[0].tolist() == together[1:2]


def test_many_draws_are_the_distribution() -> None:
    """64 rows of one distribution: the counts are those of the reference, so of its uniform numbers."""
    logits = torch.tensor([0.0, 1.0, -torch.inf, 2.0]).repeat(64, 1)
    count = len(logits)
    ones, nothing = torch.ones(count), torch.zeros(count)
    seeds = torch.arange(count)
    columns = DrawColumns(ones, nothing.int(), ones, nothing, seeds, torch.zeros_like(seeds), seeds * 3)
    tokens = _draw(logits, columns)[0]
    assert tokens.tolist() == reference_draw(logits, columns).tolist()
    assert np.bincount(tokens.numpy(), minlength=4)[2] == 0

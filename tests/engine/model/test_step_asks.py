"""Which blocks a step's products ask for before attention reads them."""

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from vllm_obs.engine.attention.batch import AttentionBatch
from vllm_obs.engine.kernels.cpu.cache_asks import ASK_FIELDS, chunks_a_block
from vllm_obs.engine.kernels.cpu.cache_shape import CacheShape
from vllm_obs.engine.model import step_asks
from vllm_obs.engine.model.compiled_layer import CompiledLayer
from vllm_obs.engine.model.step_asks import ORDER, StepAsks

SHAPE = CacheShape(9, 3, 64, 16, "int16")
LAYER = cast(CompiledLayer, SimpleNamespace(**{name: SimpleNamespace(num_bytes=3 + len(name)) for name in ORDER}))
"""Of a layer only the matrices' sizes are read."""


def batch(tables: list[list[int]], lengths: list[int], tokens: list[int]) -> AttentionBatch:
    """Rows of so many tokens of this step each."""
    return AttentionBatch(
        num_decodes=tokens.count(1),
        query_lens=tokens,
        seq_lens=lengths,
        block_tables=torch.tensor(tables),
        slot_mapping=torch.zeros(sum(tokens), dtype=torch.int64),
        logits_indices=torch.zeros(0, dtype=torch.int64),
    )


def asked(asks: StepAsks) -> dict[str, tuple[int, int]]:
    """First chunk and end of each product, as its kernel reads them."""
    found = {}
    for name in ORDER:
        _, first, end = (ctypes.c_int64 * ASK_FIELDS).from_address(asks.address(name))
        found[name] = (first, end)
    return found


def num_chunks(asks: StepAsks) -> int:
    return asked(asks)[ORDER[-1]][1]


def test_products_share_all_chunks_in_their_order_by_their_size() -> None:
    asks = StepAsks(LAYER, SHAPE)
    asks.set_step(batch([[1, 2, 3]] * 10, [48] * 10, [1] * 10))
    found = asked(asks)
    begins, ends = zip(*(found[name] for name in ORDER), strict=True)
    assert begins == (0, *ends[:-1])
    assert ends[-1] == 3 * chunks_a_block(SHAPE)
    longest = max(ORDER, key=len)
    assert found[longest][1] - found[longest][0] == max(end - begin for begin, end in found.values())


def test_a_block_of_several_rows_is_asked_for_once_and_what_no_row_has_reached_never() -> None:
    asks = StepAsks(LAYER, SHAPE)
    rows = [[7, 7 + row, 90] for row in range(1, 11)]
    asks.set_step(batch(rows, [17] * 10, [1] * 10))
    assert num_chunks(asks) == 11 * chunks_a_block(SHAPE)


def test_for_few_tokens_nothing_is_asked_for() -> None:
    asks = StepAsks(LAYER, SHAPE)
    asks.set_step(batch([[1]] * 10, [16] * 10, [1] * 10))
    assert num_chunks(asks) > 0
    asks.set_step(batch([[1]] * 2, [16] * 2, [1] * 2))
    assert num_chunks(asks) == 0


@pytest.mark.parametrize(("size", "num_bytes"), [("64K", 64 << 10), ("", 16 << 20), ("a lot", 16 << 20)])
def test_no_more_than_half_of_the_last_cache_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, size: str, num_bytes: int
) -> None:
    known = tmp_path / "size"
    known.write_text(size, "utf-8")
    monkeypatch.setattr(step_asks, "_LAST_CACHE", known)
    asks = StepAsks(LAYER, SHAPE)
    tables = [list(range(100 * row, 100 * (row + 1))) for row in range(40)]
    asks.set_step(batch(tables, [1600] * 40, [1] * 40))
    assert num_chunks(asks) == num_bytes // 2 // SHAPE.block_bytes * chunks_a_block(SHAPE)


def test_the_blocks_that_rows_write_to_come_first_where_not_all_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    known = tmp_path / "size"
    known.write_text(f"{2 * 12 * SHAPE.block_bytes // 1024 + 1}K", "utf-8")
    monkeypatch.setattr(step_asks, "_LAST_CACHE", known)
    asks = StepAsks(LAYER, SHAPE)
    asks.set_step(batch([[row, 100 + row, 200 + row] for row in range(10)], [33] * 10, [1] * 10))
    numbers, _, _ = (ctypes.c_int64 * ASK_FIELDS).from_address(asks.address("output"))
    assert list((ctypes.c_int64 * 12).from_address(numbers)) == [*range(200, 210), 0, 1]

"""What a launch has to move and compute follows from its shapes; launches are told to who watches."""

import pytest
import torch
from kernel_cases import cache_case, one_config

from vllm_obs.engine.kernels.triton.configs import configs_for
from vllm_obs.engine.kernels.triton.launch import WATCH
from vllm_obs.engine.kernels.triton.launch_work import NO_ROWS, LaunchWork, StepRows
from vllm_obs.engine.kernels.triton.model_shape import ModelShape
from vllm_obs.engine.kernels.triton.paged_attention import AttentionShape, SplitBuffers, paged_attention
from vllm_obs.engine.kernels.triton.sampling_workloads import sampling_workloads
from vllm_obs.engine.kernels.triton.silu_mul import silu_mul
from vllm_obs.engine.kernels.triton.workloads import Bench, WorkSize, layer_workloads

SHAPE = ModelShape("small", 64, 96, 4, 2, 16, 320)
SIZE = WorkSize(num_rows=2, seq_len=40, num_prompt_tokens=24, num_splits=4)
TOKENS, HEADS, KV_HEADS, DIM, VOCAB = 24, 4, 2, 16, 320
QUERIES, CACHED, HEAD_ROTATIONS = TOKENS * HEADS * DIM, 2 * TOKENS * KV_HEADS * DIM, TOKENS * DIM * 4
SEEN = 2 * 160
EXPECTED = {
    "paged_attention decode 2 rows of 40, bf16": (2 * 2 * HEADS * DIM * 2 + 80 * 2 * KV_HEADS * DIM * 2, 80),
    "paged_attention decode 2 rows of 40, fp8": (2 * 2 * HEADS * DIM * 2 + 80 * 2 * KV_HEADS * DIM, 80),
    "paged_attention decode 1 row of 80, 4 splits": (
        HEADS * DIM * 2 + HEADS * 4 * (DIM + 2) * 4 + 80 * 2 * KV_HEADS * DIM * 2,
        80,
    ),
    "split_reduction 2 rows, 4 splits": (2 * HEADS * 4 * (DIM + 2) * 4 + 2 * HEADS * DIM * 2, 0),
    "paged_attention prefill 24 tokens": (2 * QUERIES * 2 + CACHED * 2, TOKENS * (TOKENS + 1) // 2),
    "kv_write 24 tokens, cache": (CACHED * (2 + 2), 0),
    "kv_write 24 tokens, fp8": (CACHED * (2 + 1), 0),
    "rotary 24 tokens": (2 * TOKENS * (HEADS + KV_HEADS) * DIM * 2 + HEAD_ROTATIONS, 0),
    "qkv 24 tokens": (2 * (QUERIES + CACHED) * 2 + HEAD_ROTATIONS, 0),
    "rms_norm 24 × 64": (TOKENS * 64 * (4 + 4 + 2 + 2) + 64 * 4, 0),
    "silu_mul 24 × 96": (3 * TOKENS * 96 * 2, 0),
    "best_tokens 2 × 320": (2 * VOCAB * 4, 0),
    "logprobs 2 × 320, 20 best": (2 * VOCAB * 4, 0),
    "filtered_draw 2 × 320": (2 * VOCAB * 4, 0),
    "token_bitmask 2 × 320": (2 * VOCAB // 8 + 2 * VOCAB * 4 // 2, 0),
    "penalties 2 rows of 160": (SEEN * (4 + 4 + 2 * 4), 0),
    "logit_bias 2 rows of 160": (SEEN * (4 + 4 + 2 * 4), 0),
}
"""Bytes, and queries times keys."""


def test_every_kernel_moves_each_number_once_and_attention_multiplies_by_queries_and_keys() -> None:
    bench = Bench(SHAPE, SIZE, torch.device("cpu"))
    found = {}
    for each in (*layer_workloads(bench), *sampling_workloads(bench)):
        work = each.launch(configs_for(90)).work
        found[each.name] = (work.bytes_of(each.rows), work.flops_of(each.rows) // (4 * HEADS * DIM))
    assert found == EXPECTED


@pytest.mark.parametrize("window", [0, 1, 3, 8, 100])
def test_pairs_are_what_a_mask_leaves(window: int) -> None:
    rows = StepRows([1, 5, 0, 7], [9, 5, 4, 12])
    pairs, keys = 0, 0
    for queries, length in zip(rows.query_lens, rows.seq_lens, strict=True):
        position, key = torch.arange(length - queries, length)[:, None], torch.arange(length)
        is_seen = (key <= position) & ((key > position - window) if window else torch.tensor(True))
        pairs += int(is_seen.sum())
        keys += int(is_seen.any(0).sum())
    assert rows.num_pairs(window) == pairs
    assert StepRows([1, 5, 7], [9, 5, 12]).num_keys(window) == keys


def test_launches_are_told_to_who_watches_until_nobody_does() -> None:
    seen: list[LaunchWork] = []
    gate_up, output = torch.zeros(2, 8), torch.zeros(2, 4)
    launch = silu_mul(gate_up, output, one_config("silu_mul", block_size=4))
    WATCH.seen = seen.append
    try:
        launch.run()
    finally:
        WATCH.seen = None
    launch.run()
    assert seen == [LaunchWork("silu_mul_kernel", 3 * 8 * 4)]
    assert seen[0].flops_of(NO_ROWS) == 0


def test_splits_write_what_they_found_and_no_output() -> None:
    shape = AttentionShape(4, 2, 16, 0.25, window=9)
    case = cache_case([(1, 9)], shape, 8, torch.float32)
    queries = torch.zeros(1, 64)
    splits = SplitBuffers.of(1, shape, 2, torch.device("cpu"))
    work = paged_attention(queries, case.layer_cache, queries, case.rows, shape, configs_for(90), splits).work
    assert work == LaunchWork(
        "paged_attention_kernel", (64 + 4 * 2 * 18) * 4, 2 * 2 * 16 * 4, 4 * 4 * 16, window=9
    )

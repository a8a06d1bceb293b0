"""Workloads: each kernel at the sizes of a model, with tensors to run on and what it must move and compute."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from vllm_obs.engine.kernels.triton.configs import Configs
from vllm_obs.engine.kernels.triton.kv_write import kv_write
from vllm_obs.engine.kernels.triton.launch import Launch
from vllm_obs.engine.kernels.triton.launch_work import NO_ROWS, StepRows
from vllm_obs.engine.kernels.triton.model_shape import ModelShape
from vllm_obs.engine.kernels.triton.paged_attention import (
    AttentionShape,
    RaggedRows,
    SplitBuffers,
    paged_attention,
)
from vllm_obs.engine.kernels.triton.qkv import HeadNorms, Places, qkv_split
from vllm_obs.engine.kernels.triton.rms_norm import rms_norm
from vllm_obs.engine.kernels.triton.rotary import rotary
from vllm_obs.engine.kernels.triton.silu_mul import silu_mul
from vllm_obs.engine.kernels.triton.split_reduction import split_reduction

CACHE_BLOCK = 16


@dataclass(frozen=True)
class WorkSize:
    """num_rows sequences of seq_len keys decode; a prompt has num_prompt_tokens; long keys are in num_splits."""

    num_rows: int
    seq_len: int
    num_prompt_tokens: int
    num_splits: int = 8


@dataclass(frozen=True)
class Workload:
    """One kernel's work. rows: of attention, whose work depends on what is in the cache."""

    name: str
    kernel: str
    launch: Callable[[Configs], Launch]
    rows: StepRows = NO_ROWS


@dataclass(frozen=True)
class Bench:
    """Makes the tensors: of these sizes, on this device, in this type."""

    shape: ModelShape
    size: WorkSize
    device: torch.device
    dtype: torch.dtype = torch.bfloat16

    def random(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Normal numbers."""
        return torch.randn(shape, device=self.device).to(dtype or self.dtype)

    def integers(self, values: list[int], dtype: torch.dtype = torch.int32) -> torch.Tensor:
        """These numbers on the device."""
        return torch.tensor(values, dtype=dtype, device=self.device)

    def attention_shape(self) -> AttentionShape:
        """Of one layer."""
        shape = self.shape
        return AttentionShape(shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.head_dim**-0.5)

    def cache(self, num_tokens: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """A layer's cache with room for so many tokens."""
        shape = self.shape
        num_blocks = -(-num_tokens // CACHE_BLOCK) + 1
        return self.random(num_blocks, 2, shape.num_kv_heads, CACHE_BLOCK, shape.head_dim, dtype=dtype)


def layer_workloads(bench: Bench) -> Iterator[Workload]:
    """The kernels of a decoder's layer; each one's tensors can go before the next one's are made."""
    yield from _attention(bench)
    yield from _cache_writes(bench)
    yield from _rows(bench)


def _attention(bench: Bench) -> Iterator[Workload]:
    size = bench.size
    yield _decode(bench, bench.dtype, "bf16" if bench.dtype == torch.bfloat16 else "cache")
    yield _decode(bench, torch.uint8, "fp8")
    yield from _split_decode(bench)
    num_tokens = size.num_prompt_tokens
    starts, lengths = bench.integers([0, num_tokens]), bench.integers([num_tokens])
    rows = RaggedRows(_tables(bench, 1, num_tokens), starts, lengths, num_tokens)
    queries, output = _queries(bench, num_tokens), _queries(bench, num_tokens)
    cache, shape = bench.cache(num_tokens), bench.attention_shape()
    yield Workload(
        f"paged_attention prefill {num_tokens} tokens",
        "paged_attention",
        lambda configs: paged_attention(queries, cache, output, rows, shape, configs),
        StepRows([num_tokens], [num_tokens]),
    )


def _decode(bench: Bench, stored: torch.dtype, word: str) -> Workload:
    size, shape = bench.size, bench.attention_shape()
    num_keys = size.num_rows * size.seq_len
    if stored == torch.uint8:  # codes below 0x70 are numbers, none of them large
        cache = (bench.cache(num_keys, torch.float32).abs() * 40).clamp(max=111).to(torch.uint8)
    else:
        cache = bench.cache(num_keys)
    rows = _decoding_rows(bench)
    queries, output = _queries(bench, size.num_rows), _queries(bench, size.num_rows)
    return Workload(
        f"paged_attention decode {size.num_rows} rows of {size.seq_len}, {word}",
        "paged_attention",
        lambda configs: paged_attention(queries, cache, output, rows, shape, configs),
        StepRows([1] * size.num_rows, [size.seq_len] * size.num_rows),
    )


def _split_decode(bench: Bench) -> Iterator[Workload]:
    """One long sequence, its keys in splits, and their reduction."""
    one = Bench(bench.shape, WorkSize(1, bench.size.num_rows * bench.size.seq_len, 1), bench.device, bench.dtype)
    shape, num_keys = one.attention_shape(), one.size.seq_len
    splits = SplitBuffers.of(1, shape, bench.size.num_splits, bench.device)
    cache, rows = one.cache(num_keys), _decoding_rows(one)
    queries, output = _queries(one, 1), _queries(one, 1)
    yield Workload(
        f"paged_attention decode 1 row of {num_keys}, {bench.size.num_splits} splits",
        "paged_attention",
        lambda configs: paged_attention(queries, cache, output, rows, shape, configs, splits),
        StepRows([1], [num_keys]),
    )
    many = SplitBuffers.of(bench.size.num_rows, shape, bench.size.num_splits, bench.device)
    many.sums.normal_()
    many.stats.fill_(1.0)
    outputs = _queries(bench, bench.size.num_rows)
    yield Workload(
        f"split_reduction {bench.size.num_rows} rows, {bench.size.num_splits} splits",
        "split_reduction",
        lambda configs: split_reduction(many, outputs, configs),
    )


def _cache_writes(bench: Bench) -> Iterator[Workload]:
    shape, num_tokens = bench.shape, bench.size.num_prompt_tokens
    num_all = shape.num_heads + 2 * shape.num_kv_heads
    heads = bench.random(num_tokens, num_all, shape.head_dim)
    cache, codes = bench.cache(num_tokens), bench.cache(num_tokens).view(torch.uint8)[..., : shape.head_dim]
    codes = codes.contiguous()
    slots = torch.randperm(num_tokens, device=bench.device)
    positions = torch.arange(num_tokens, device=bench.device)
    rotations = bench.random(num_tokens, shape.head_dim // 2, 2, dtype=torch.float32)
    first_value = num_all - shape.num_kv_heads
    keys, values = heads[:, shape.num_heads : first_value], heads[:, first_value:]
    for word, target in (("cache", cache), ("fp8", codes)):
        yield Workload(
            f"kv_write {num_tokens} tokens, {word}",
            "kv_write",
            lambda configs, target=target: kv_write(keys, values, slots, target, configs),  # type: ignore[misc]
        )
    yield Workload(
        f"rotary {num_tokens} tokens",
        "rotary",
        lambda configs: rotary(heads, rotations, positions, first_value, configs),
    )
    weight = bench.random(shape.head_dim, dtype=torch.float32)
    norms = HeadNorms(weight, weight, 1e-6)
    queries, places = _queries(bench, num_tokens), Places(positions, slots, rotations)
    qkv = heads.flatten(1)
    yield Workload(
        f"qkv {num_tokens} tokens",
        "qkv",
        lambda configs: qkv_split(
            qkv, norms if shape.has_head_norms else None, places, queries, cache, bench.attention_shape(), configs
        ),
    )


def _rows(bench: Bench) -> Iterator[Workload]:
    shape, num_tokens = bench.shape, bench.size.num_prompt_tokens
    stream = bench.random(num_tokens, shape.hidden_size, dtype=torch.float32)
    added, normed = bench.random(num_tokens, shape.hidden_size), bench.random(num_tokens, shape.hidden_size)
    weight = bench.random(shape.hidden_size, dtype=torch.float32)
    yield Workload(
        f"rms_norm {num_tokens} × {shape.hidden_size}",
        "rms_norm",
        lambda configs: rms_norm(stream, added, weight, 1e-5, normed, configs),
    )
    gate_up = bench.random(num_tokens, 2 * shape.intermediate_size)
    opened = bench.random(num_tokens, shape.intermediate_size)
    yield Workload(
        f"silu_mul {num_tokens} × {shape.intermediate_size}",
        "silu_mul",
        lambda configs: silu_mul(gate_up, opened, configs),
    )


def _queries(bench: Bench, num_tokens: int) -> torch.Tensor:
    return bench.random(num_tokens, bench.shape.num_heads * bench.shape.head_dim)


def _tables(bench: Bench, num_rows: int, seq_len: int) -> torch.Tensor:
    """int32 (rows, blocks): blocks lie anywhere."""
    num_blocks = -(-seq_len // CACHE_BLOCK)
    num_cached = -(-num_rows * seq_len // CACHE_BLOCK) + 1
    order = torch.randperm(num_rows * num_blocks, device=bench.device) % num_cached
    return order.view(num_rows, num_blocks).to(torch.int32)


def _decoding_rows(bench: Bench) -> RaggedRows:
    size = bench.size
    return RaggedRows(
        _tables(bench, size.num_rows, size.seq_len),
        torch.arange(size.num_rows + 1, dtype=torch.int32, device=bench.device),
        torch.full((size.num_rows,), size.seq_len, dtype=torch.int32, device=bench.device),
        max_query_len=1,
    )

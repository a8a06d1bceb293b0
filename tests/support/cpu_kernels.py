"""Calls of single CPU kernels on tensors, and their plain-torch references."""

from dataclasses import dataclass

import numpy as np
import torch

from vllm_obs.engine.attention.batch import AttentionBatch
from vllm_obs.engine.kernels.cpu.attention import piece_form
from vllm_obs.engine.kernels.cpu.program import RECORD_FIELDS, Kernel, Kernels
from vllm_obs.engine.model.attention_pieces import attention_pieces


def call(kernels: Kernels, kernel: Kernel, fields: list[int], num_threads: int = 2) -> None:
    """Run one kernel with these fields."""
    record = np.zeros((1, RECORD_FIELDS), np.int64)
    record[0, : len(fields) + 1] = kernel, *fields
    kernels.run(record, num_threads)


def call_norm(
    kernels: Kernels, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, num_parts: int, eps: float
) -> None:
    """The norm of each of a row's parts."""
    size = len(weight)
    bits = int(np.float32(eps).view(np.int32))
    strides = (4 * x.shape[1], 4 * out.shape[1])
    rows = [out.data_ptr(), strides[1], len(x), size, num_parts, 4 * size, bits]
    call(kernels, Kernel.NORM, [x.data_ptr(), strides[0], weight.data_ptr(), *rows])


@dataclass
class PagedStep:
    """A step over a cache whose blocks are handed out in random order.

    qkv: float32 (T, heads + 2 * kv_heads, head_dim). cache: bytes; as floats of any kind all are NaN at first.
    """

    kernels: Kernels
    num_blocks: int
    rotations: torch.Tensor

    def __post_init__(self) -> None:
        self.cache = torch.full((self.num_blocks, self.kernels.shape.block_bytes), 0xFF, dtype=torch.uint8)
        self.free = torch.randperm(self.num_blocks)
        self.tables: dict[int, torch.Tensor] = {}

    def table(self, sequence: int, num_tokens: int) -> torch.Tensor:
        """The sequence's blocks, with as many new ones as it needs."""
        known = self.tables.get(sequence, torch.empty(0, dtype=torch.int64))
        missing = -(-num_tokens // self.kernels.shape.block_size) - len(known)
        if missing > 0:
            known, self.free = torch.cat((known, self.free[:missing])), self.free[missing:]
            self.tables[sequence] = known
        return known

    def share(self, sequence: int, source: int, num_blocks: int) -> None:
        """Let a new sequence begin with blocks of another one."""
        self.tables[sequence] = self.tables[source][:num_blocks]

    def run(
        self,
        qkv: torch.Tensor,
        rows: list[tuple[int, int, int]],
        window: int = 0,
        num_threads: int = 2,
        num_decodes: int = 0,
    ) -> torch.Tensor:
        """Rotate, write and attend for rows of (sequence, tokens already there, new tokens); uses `qkv` up.

        The first `num_decodes` rows, of one new token each, may be attended together.
        """
        shape = self.kernels.shape
        tables = torch.nn.utils.rnn.pad_sequence(
            [self.table(sequence, before + new) for sequence, before, new in rows], batch_first=True
        )
        positions = torch.cat([torch.arange(before, before + new) for _, before, new in rows])
        owners = torch.repeat_interleave(torch.arange(len(rows)), torch.tensor([new for _, _, new in rows]))
        blocks = tables[owners, positions // shape.block_size]
        slots = blocks * shape.block_size + positions % shape.block_size
        batch = AttentionBatch(
            num_decodes=num_decodes,
            query_lens=[new for _, _, new in rows],
            seq_lens=[before + new for _, before, new in rows],
            block_tables=tables,
            slot_mapping=slots,
            logits_indices=slots[:0],
        )
        pieces = attention_pieces(batch, piece_form(self.kernels.machine, shape)._replace(least_pieces=1))
        out = torch.full((len(qkv), shape.num_heads, shape.head_dim), torch.nan)
        stride = 4 * qkv[0].numel()
        cache = self.cache.data_ptr()
        rotate = [qkv.data_ptr(), stride, self.rotations.data_ptr(), positions.data_ptr(), cache, slots.data_ptr()]
        call(self.kernels, Kernel.ROTATE, [*rotate, len(qkv)], num_threads)
        attend = [qkv.data_ptr(), stride, cache, tables.data_ptr(), 8 * tables.shape[1], pieces.pieces.ctypes.data]
        rest = [len(pieces.pieces), out.data_ptr(), 4 * out[0].numel(), window, 0, pieces.queries.ctypes.data]
        call(self.kernels, Kernel.ATTEND, [*attend, *rest], num_threads)
        return out


def rotated(heads: torch.Tensor, rotations: torch.Tensor) -> torch.Tensor:
    """Heads (T, heads, head_dim), pairs side by side, turned by rotations complex64 (T, head_dim / 2)."""
    pairs = torch.view_as_complex(heads.float().reshape(*heads.shape[:2], -1, 2))
    return torch.view_as_real(pairs * rotations[:, None]).flatten(2)


def reference_attention(
    qkv: torch.Tensor, rotations: torch.Tensor, num_heads: int, num_kv_heads: int, stored: str, window: int
) -> torch.Tensor:
    """What a whole sequence's queries get, in float64: (T, heads, head_dim); keys and values rounded as stored.

    Whole numbers are not rounded here: their steps are too small to count.
    """
    dtype = torch.float64 if stored == "int16" else getattr(torch, stored)
    queries, keys, values = qkv.split([num_heads, num_kv_heads, num_kv_heads], 1)
    queries = rotated(queries, rotations).double()
    keys = rotated(keys, rotations).to(dtype).double().repeat_interleave(num_heads // num_kv_heads, 1)
    values = values.to(dtype).double().repeat_interleave(num_heads // num_kv_heads, 1)
    scores = torch.einsum("qhd,khd->hqk", queries, keys) * qkv.shape[-1] ** -0.5
    ages = torch.arange(len(qkv))[:, None] - torch.arange(len(qkv))
    hidden = (ages < 0) | (ages >= window) if window else ages < 0
    shares = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", shares, values)

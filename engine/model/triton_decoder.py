"""The decoder family through Triton's kernels: matrix products are torch's, everything between them is ours."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

import torch

from vllm_obs.engine.attention.batch import TABLE_MULTIPLE, AttentionBatch
from vllm_obs.engine.attention.kv_cache import BlockedKVCache
from vllm_obs.engine.kernels.triton.configs import CAPABILITIES, Configs, configs_for, configs_of_card
from vllm_obs.engine.kernels.triton.launch import WATCH
from vllm_obs.engine.kernels.triton.launch_work import LaunchWork
from vllm_obs.engine.kernels.triton.paged_attention import (
    AttentionShape,
    RaggedRows,
    SplitBuffers,
    num_splits_for,
    paged_attention,
)
from vllm_obs.engine.kernels.triton.qkv import HeadNorms, Places, qkv_split
from vllm_obs.engine.kernels.triton.rms_norm import rms_norm
from vllm_obs.engine.kernels.triton.silu_mul import silu_mul
from vllm_obs.engine.kernels.triton.split_reduction import split_reduction
from vllm_obs.engine.model.decoder import Decoder
from vllm_obs.engine.model.interface import PagedKVCache, Progress, unwatched
from vllm_obs.engine.model.layers import DecoderLayer, RMSNorm
from vllm_obs.engine.model.stage_ends import ReceivedStates

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TritonCard:
    """What the kernels run on: the configurations for it, and how many multiprocessors it has."""

    configs: Configs
    num_processors: int

    @classmethod
    def of_device(cls, capability: tuple[int, int] | None) -> "TritonCard":
        """The current CUDA device, of that compute capability; without one, the interpreter."""
        if capability is None:
            return cls(configs_for(CAPABILITIES[0]), num_processors=1)
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        configs, reason = configs_of_card(properties.name, 10 * capability[0] + capability[1])
        _logger.info("Kernel table: %s", reason)
        return cls(configs, properties.multi_processor_count)


@dataclass(frozen=True)
class DeviceTokens:
    """A step's tokens, on the device: token_ids, positions, slots int64 (T,), slot -1 for padding.

    max_seq_len: no row has more keys; decides how keys are split.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    rows: RaggedRows
    max_seq_len: int


@dataclass(frozen=True)
class TritonDecoder:
    """A DecoderModel with the weights of `plain`, whose cache and logits it shares.

    rotations: float32 (max_model_len, head_dim / 2, 2). Rows may be padded by tokens with slot -1.
    """

    plain: Decoder
    rotations: torch.Tensor
    card: TritonCard

    @classmethod
    def over(cls, plain: Decoder, card: TritonCard) -> "TritonDecoder":
        """The same model by other means."""
        return cls(plain, torch.view_as_real(plain.rotations).contiguous(), card)

    @property
    def is_later_stage(self) -> bool:
        """Whether another rank makes what this one's layers begin with."""
        return isinstance(self.plain.inlet, ReceivedStates)

    @property
    def is_last_stage(self) -> bool:
        """Whether it makes logits."""
        return self.plain.lm_head is not None

    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> PagedKVCache:
        """A zeroed cache of `num_blocks` blocks for all layers."""
        return self.plain.allocate_kv_cache(num_blocks, block_size)

    def kv_block_bytes(self, block_size: int) -> int:
        """Bytes that one block takes over all layers."""
        return self.plain.kv_block_bytes(block_size)

    @torch.inference_mode()
    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        batch: AttentionBatch,
        kv_cache: PagedKVCache,
        on_layer: Progress = unwatched,
    ) -> torch.Tensor:
        """Hidden states (R, hidden), normed, float32, at `batch.logits_indices`; see interface.DecoderModel."""
        tokens = DeviceTokens(token_ids, positions, batch.slot_mapping, ragged_rows(batch), max(batch.seq_lens))
        return self.run(tokens, batch.logits_indices, kv_cache, on_layer)

    @torch.inference_mode()
    def run(
        self,
        tokens: "DeviceTokens",
        logits_indices: torch.Tensor | None,
        kv_cache: PagedKVCache,
        on_layer: Progress = unwatched,
    ) -> torch.Tensor:
        """`forward` of what is on the device already, all tokens' states without `logits_indices`.

        Nothing in it depends on what the tensors hold, so it can be captured in a CUDA graph.
        """
        stream = self.plain.inlet(tokens.token_ids)
        return self.plain.outlet(self.through(stream, tokens, logits_indices, kv_cache, on_layer))

    @torch.inference_mode()
    def through(
        self,
        stream: torch.Tensor,
        tokens: "DeviceTokens",
        logits_indices: torch.Tensor | None,
        kv_cache: PagedKVCache,
        on_layer: Progress = unwatched,
    ) -> torch.Tensor:
        """The residual stream (T or R, hidden), float32, after all layers; what is given may be used up."""
        assert isinstance(kv_cache, BlockedKVCache)
        plain = self.plain
        places = Places(tokens.positions, tokens.slots, self.rotations)
        step = _Step(self.card, places, tokens.rows, tokens.max_seq_len, plain.numerics.activations)
        residual, made = stream.contiguous(), None
        last = len(plain.layers) - 1 if plain.lm_head is not None else -1
        for number, (layer, layer_cache) in enumerate(zip(plain.layers, kv_cache.layers, strict=True)):
            attended = step.attend(layer, residual, made, layer_cache)
            made = None
            if number == last and logits_indices is not None:  # only the rows that are asked for matter from here
                residual = residual.index_select(0, logits_indices)
                attended = attended.index_select(0, logits_indices)
            if len(residual):
                made = step.finish(layer, residual, attended)
            on_layer()
        return residual if made is None else residual + made

    def watch_launches(self, watch: Callable[[LaunchWork], None] | None) -> None:
        """Tell of every launch on this thread from now on, the sampler's too; None ends it."""
        WATCH.seen = watch

    def warm_decodes(self, kv_cache: PagedKVCache, max_seq_len: int) -> None:
        """Run a padding token with every number of splits that keys may come in: each is a kernel of its own.

        Its block table is as wide as those of steps are: for a stride of 1 Triton would compile other kernels.
        """
        device = self.rotations.device
        token, nowhere = (torch.full((1,), value, dtype=torch.int64, device=device) for value in (0, -1))
        starts = torch.arange(2, dtype=torch.int32, device=device)
        tables = torch.zeros((1, TABLE_MULTIPLE), dtype=torch.int64, device=device)
        rows = RaggedRows(tables, starts, torch.ones(1, dtype=torch.int32, device=device), max_query_len=1)
        reach = 1
        while reach < 2 * max_seq_len:
            self.run(DeviceTokens(token, token, nowhere, rows, min(reach, max_seq_len)), None, kv_cache)
            reach *= 2

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits (R, vocab) in float32 from hidden states (R, hidden); (R, 0) but on the first shard."""
        return self.plain.compute_logits(hidden)


def ragged_rows(batch: AttentionBatch) -> RaggedRows:
    """A step's rows, on the device of its block tables, without waiting for it."""
    device = batch.block_tables.device
    query_starts = [0, *accumulate(batch.query_lens)]
    # Both begin at a multiple of 16 bytes: for another address Triton would compile the kernels anew.
    gap = [0] * (-len(query_starts) % 4)
    numbers = [*query_starts, *gap, *batch.seq_lens]
    both = torch.tensor(numbers, dtype=torch.int32, pin_memory=device.type == "cuda").to(device, non_blocking=True)
    starts, seq_lens = both[: len(query_starts)], both[len(query_starts) + len(gap) :]
    return RaggedRows(batch.block_tables.contiguous(), starts, seq_lens, max(batch.query_lens))


@dataclass(frozen=True)
class _Step:
    """One step's tokens on a card; the residual stream is float32 and changed in place."""

    card: TritonCard
    places: Places
    rows: RaggedRows
    max_seq_len: int
    dtype: torch.dtype

    def attend(
        self, layer: DecoderLayer, residual: torch.Tensor, made: torch.Tensor | None, layer_cache: torch.Tensor
    ) -> torch.Tensor:
        """The heads' outputs (T, heads * head_dim), once what the layer before made is in the stream."""
        configs, shape = self.card.configs, _shape(layer)
        qkv = layer.qkv(self._normed(layer.input_norm, residual, made))
        queries = qkv.new_empty(len(qkv), shape.num_heads * shape.head_dim)
        qkv_split(qkv, _head_norms(layer), self.places, queries, layer_cache, shape, configs).run()
        output = torch.empty_like(queries)
        splits = self._splits(len(queries), shape)
        paged_attention(queries, layer_cache, output, self.rows, shape, configs, splits).run()
        if splits is not None:
            split_reduction(splits, output, configs).run()
        return output

    def finish(self, layer: DecoderLayer, residual: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """What the MLP makes (T, hidden), for the stream to take; attention's part is taken here."""
        normed = self._normed(layer.post_attention_norm, residual, layer.output(attended))
        gate_up = layer.gate_up(normed)
        opened = gate_up.new_empty(len(gate_up), gate_up.shape[1] // 2)
        silu_mul(gate_up, opened, self.card.configs).run()
        return layer.down(opened)

    def _normed(self, norm: RMSNorm, residual: torch.Tensor, made: torch.Tensor | None) -> torch.Tensor:
        normed = torch.empty(residual.shape, dtype=self.dtype, device=residual.device)
        rms_norm(residual, made, norm.weight, norm.eps, normed, self.card.configs).run()
        return normed

    def _splits(self, num_tokens: int, shape: AttentionShape) -> SplitBuffers | None:
        if self.rows.max_query_len > 1:
            return None
        reach = self.max_seq_len if shape.window is None else min(self.max_seq_len, shape.window)
        count = num_splits_for(len(self.rows.seq_lens), shape.num_kv_heads, reach, self.card.num_processors)
        return SplitBuffers.of(num_tokens, shape, count, self.rows.seq_lens.device) if count > 1 else None


def _shape(layer: DecoderLayer) -> AttentionShape:
    attention = layer.attention
    head_dim = attention.head_dim
    return AttentionShape(
        attention.num_heads, attention.num_kv_heads, head_dim, head_dim**-0.5, window=attention.window
    )


def _head_norms(layer: DecoderLayer) -> HeadNorms | None:
    if layer.query_norm is None or layer.key_norm is None:
        return None
    return HeadNorms(layer.query_norm.weight, layer.key_norm.weight, layer.query_norm.eps)

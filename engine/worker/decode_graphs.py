"""Decode steps as captured graphs, one a batch size, over buffers that stay where they are."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from vllm_obs.engine.attention.batch import AttentionBatch
from vllm_obs.engine.kernels.triton.launch import WATCH
from vllm_obs.engine.kernels.triton.launch_work import LaunchWork
from vllm_obs.engine.kernels.triton.paged_attention import RaggedRows
from vllm_obs.engine.model.interface import PagedKVCache
from vllm_obs.engine.model.triton_decoder import DeviceTokens, TritonDecoder
from vllm_obs.engine.worker.graph_buckets import GraphUse, choose_graph
from vllm_obs.engine.worker.graph_captures import Captured, Captures, Work


class GraphLimits(NamedTuple):
    """The most rows a graph has, tokens a row has, and tokens a block has."""

    max_num_rows: int
    max_model_len: int
    block_size: int


class DecodeGraphs:
    """The graphs of one decoder, or of a rank's part of one, over one cache.

    What shards exchange within a layer is in the graphs. What stages hand on is not: it is taken before a replay,
    and handed on after it.
    """

    def __init__(
        self, decoder: TritonDecoder, kv_cache: PagedKVCache, limits: GraphLimits, captures: Captures
    ) -> None:
        self._decoder = decoder
        self._kv_cache = kv_cache
        self._limits = limits
        self._captures = captures
        self._graphs: dict[int, Captured] = {}
        self._launched: dict[int, list[LaunchWork]] = {}
        device, num_rows = decoder.rotations.device, limits.max_num_rows
        max_blocks = -(-limits.max_model_len // limits.block_size)
        hidden_size = decoder.plain.architecture.hidden_size
        self._tokens = torch.zeros((3, num_rows), dtype=torch.int64, device=device)
        self._tables = torch.zeros((num_rows, max_blocks), dtype=torch.int64, device=device)
        self._starts = torch.arange(num_rows + 1, dtype=torch.int32, device=device)
        self._seq_lens = torch.ones(num_rows, dtype=torch.int32, device=device)
        self._received = torch.zeros((num_rows * decoder.is_later_stage, hidden_size), device=device)
        # All graphs leave their states here: else each would keep its own, which no other could use.
        self._hidden = torch.zeros((num_rows, hidden_size), device=device)
        self._pad(0, num_rows)

    @property
    def sizes(self) -> list[int]:
        """Batch sizes that have a graph, ascending."""
        return sorted(self._graphs)

    def rehearse(self, size: int) -> None:
        """Run a padded step of that size as a capture will, for what takes memory or time once only."""
        self._captures.maker.rehearse(self._work(size))

    def capture(self, sizes: Sequence[int], on_size: Callable[[], None] = lambda: None) -> None:
        """Capture graphs of these sizes; see Captures."""
        self._pad(0, self._limits.max_num_rows)
        self._graphs = self._captures.of(self._work, sizes, on_size)

    def choose(self, batch: AttentionBatch) -> GraphUse:
        """How a step is to be run: the same on every shard, since all of them have the same graphs."""
        return choose_graph(len(batch.query_lens), max(batch.query_lens), self._graphs)

    def run(
        self, use: GraphUse, token_ids: torch.Tensor, positions: torch.Tensor, batch: AttentionBatch
    ) -> torch.Tensor:
        """Hidden states (R, hidden) of a step that `choose` found a graph for, at its `logits_indices`.

        None (0, hidden) of a stage that hands on its states.
        """
        captured, decoder = self._graphs[use.bucket], self._decoder
        num_rows = len(batch.query_lens)
        for buffer, values in zip(self._tokens, (token_ids, positions, batch.slot_mapping), strict=True):
            buffer[:num_rows].copy_(values, non_blocking=True)
        width = min(batch.block_tables.shape[1], self._tables.shape[1])
        self._tables[:num_rows, :width].copy_(batch.block_tables[:, :width], non_blocking=True)
        self._seq_lens[:num_rows].copy_(positions + 1, non_blocking=True)
        if use.num_padded:
            self._pad(num_rows, use.bucket)
        if decoder.is_later_stage:
            self._received[:num_rows].copy_(decoder.plain.inlet(token_ids), non_blocking=True)
        captured.graph.replay()
        if (seen := WATCH.seen) is not None:
            for each in self._launched[use.bucket]:
                seen(each)
        if decoder.is_last_stage:
            return captured.result.index_select(0, batch.logits_indices)
        return decoder.plain.outlet(captured.result[:num_rows].clone())  # the next replay overwrites the result

    def _pad(self, first: int, end: int) -> None:
        """Rows of one token that sees one key of block 0 and is written nowhere."""
        self._tokens[:2, first:end] = 0
        self._tokens[2, first:end] = -1
        self._tables[first:end, 0] = 0
        self._seq_lens[first:end] = 1
        self._received[first:end] = 0.0

    def _work(self, size: int) -> Work:
        token_ids, positions, slots = self._tokens[:, :size]
        rows = RaggedRows(self._tables[:size], self._starts[: size + 1], self._seq_lens[:size], max_query_len=1)
        tokens = DeviceTokens(token_ids, positions, slots, rows, self._limits.max_model_len)
        decoder, received, hidden = self._decoder, self._received[:size], self._hidden[:size]

        @torch.inference_mode()
        def work() -> torch.Tensor:
            stream = received.clone() if decoder.is_later_stage else decoder.plain.inlet(token_ids)
            stream = decoder.through(stream, tokens, None, self._kv_cache)
            return hidden.copy_(decoder.plain.outlet(stream) if decoder.is_last_stage else stream)

        return lambda: self._noted(size, work)

    def _noted(self, size: int, work: Work) -> torch.Tensor:
        """Do the work and note what it launches: a replay launches the same."""
        launched = self._launched[size] = []
        before, WATCH.seen = WATCH.seen, launched.append
        try:
            return work()
        finally:
            WATCH.seen = before

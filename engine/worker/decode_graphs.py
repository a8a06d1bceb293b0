"""Decode steps as captured graphs, one a batch size, over buffers that stay where they are."""

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch

from vllm_obs.engine.attention.batch import AttentionBatch
from vllm_obs.engine.kernels.triton.paged_attention import RaggedRows
from vllm_obs.engine.model.interface import PagedKVCache
from vllm_obs.engine.model.triton_decoder import DeviceTokens, TritonDecoder
from vllm_obs.engine.worker.graph_buckets import GraphUse, choose_graph

_logger = logging.getLogger(__name__)

Work = Callable[[], torch.Tensor]


class Graph(Protocol):
    """Work that was captured: replaying it does the same to what the same tensors hold now."""

    def replay(self) -> None:
        """Queue all of it on the current stream."""


class GraphMaker(Protocol):
    """Captures work; graphs of one maker share memory, so no two may be in flight at once."""

    def capture(self, work: Work) -> tuple[Graph, torch.Tensor]:
        """The graph, and where its result lies after each replay. torch.OutOfMemoryError when it does not fit."""


class GraphLimits(NamedTuple):
    """The most rows a graph has, tokens a row has, and tokens a block has."""

    max_num_rows: int
    max_model_len: int
    block_size: int


class DecodeGraphs:
    """The graphs of one decoder over one cache."""

    def __init__(
        self, decoder: TritonDecoder, kv_cache: PagedKVCache, limits: GraphLimits, maker: GraphMaker
    ) -> None:
        self._decoder = decoder
        self._kv_cache = kv_cache
        self._limits = limits
        self._maker = maker
        self._graphs: dict[int, tuple[Graph, torch.Tensor]] = {}
        device, num_rows = decoder.rotations.device, limits.max_num_rows
        max_blocks = -(-limits.max_model_len // limits.block_size)
        self._tokens = torch.zeros((3, num_rows), dtype=torch.int64, device=device)
        self._tables = torch.zeros((num_rows, max_blocks), dtype=torch.int64, device=device)
        self._starts = torch.arange(num_rows + 1, dtype=torch.int32, device=device)
        self._seq_lens = torch.ones(num_rows, dtype=torch.int32, device=device)
        # All graphs leave their states here: else each would keep its own, which no other could use.
        self._hidden = torch.zeros((num_rows, decoder.plain.architecture.hidden_size), device=device)
        self._pad(0, num_rows)

    @property
    def sizes(self) -> list[int]:
        """Batch sizes that have a graph, ascending."""
        return sorted(self._graphs)

    def capture(self, sizes: Sequence[int], on_size: Callable[[], None] = lambda: None) -> None:
        """Capture graphs of these sizes, the largest first, so that the smaller ones find room in what it took.

        A size that does not fit is left out with a warning, and its steps run eagerly or in a larger graph. What
        else goes wrong would go wrong with every size: then there are no graphs at all. `on_size` is called after
        each.
        """
        self._pad(0, self._limits.max_num_rows)
        for size in sorted(sizes, reverse=True):
            try:
                self._graphs[size] = self._maker.capture(self._work(size))
            except torch.OutOfMemoryError as error:
                _logger.warning(
                    "No CUDA graph for %d rows: out of memory (%s); "
                    "lower --gpu-memory-utilization or --max-num-seqs, or set --enforce-eager",
                    size,
                    error,
                )
            except Exception as error:
                self._graphs.clear()
                _logger.warning(
                    "No CUDA graphs, every step runs eagerly: a capture of %d rows failed with %s: %s",
                    size,
                    type(error).__name__,
                    error,
                )
                return
            on_size()

    def choose(self, batch: AttentionBatch) -> GraphUse:
        """How a step is to be run."""
        return choose_graph(len(batch.query_lens), max(batch.query_lens), self._graphs)

    def run(
        self, use: GraphUse, token_ids: torch.Tensor, positions: torch.Tensor, batch: AttentionBatch
    ) -> torch.Tensor:
        """Hidden states (R, hidden) of a step that `choose` found a graph for, at its `logits_indices`."""
        graph, hidden = self._graphs[use.bucket]
        num_rows = len(batch.query_lens)
        for buffer, values in zip(self._tokens, (token_ids, positions, batch.slot_mapping), strict=True):
            buffer[:num_rows].copy_(values, non_blocking=True)
        width = min(batch.block_tables.shape[1], self._tables.shape[1])
        self._tables[:num_rows, :width].copy_(batch.block_tables[:, :width], non_blocking=True)
        self._seq_lens[:num_rows].copy_(positions + 1, non_blocking=True)
        if use.num_padded:
            self._pad(num_rows, use.bucket)
        graph.replay()
        return hidden.index_select(0, batch.logits_indices)

    def _pad(self, first: int, end: int) -> None:
        """Rows of one token that sees one key of block 0 and is written nowhere."""
        self._tokens[:2, first:end] = 0
        self._tokens[2, first:end] = -1
        self._tables[first:end, 0] = 0
        self._seq_lens[first:end] = 1

    def _work(self, size: int) -> Work:
        token_ids, positions, slots = self._tokens[:, :size]
        rows = RaggedRows(self._tables[:size], self._starts[: size + 1], self._seq_lens[:size], max_query_len=1)
        tokens = DeviceTokens(token_ids, positions, slots, rows, self._limits.max_model_len)
        hidden = self._hidden[:size]

        def work() -> torch.Tensor:
            return hidden.copy_(self._decoder.run(tokens, None, self._kv_cache))

        return work

"""CUDA graphs from a configuration: whether there are any, what memory they will take, and their capture."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.model.interface import DecoderModel, PagedKVCache
from vllm_obs.engine.worker.gpu_memory import GpuMemory
from vllm_obs.engine.worker.graph_buckets import bucket_sizes
from vllm_obs.engine.worker.graph_captures import ALONE, Captures, GraphMaker, Shards
from vllm_obs.telemetry.records import EagerReason

if TYPE_CHECKING:
    from vllm_obs.engine.worker.decode_graphs import DecodeGraphs

TRIAL_SIZES = 2
"""Graphs that are captured to see what all will take: the largest, which sizes the pool, and the next one."""
LEAST_GRAPH_BYTES = 1 << 20
"""What a further graph is taken to need at least: a small trial may end within what the driver had already."""


def why_no_graphs(config: VllmConfig, model: DecoderModel) -> EagerReason:
    """Why steps of this model run eagerly; empty where they can be captured."""
    if config.model.device != "cuda":
        return "no_gpu"
    if config.graphs.enforce_eager:
        return "enforce_eager"
    return "" if hasattr(model, "card") else "attention_backend"  # only Triton's decoder has one


@dataclass(frozen=True)
class GraphSetUp:
    """Makes the graphs of one model: first for a trial over a small cache, then over the real one.

    Each time with a new maker, whose pool ends with its graphs.
    """

    config: VllmConfig
    model: DecoderModel
    make_maker: Callable[[], GraphMaker]
    memory: GpuMemory
    shards: Shards = ALONE

    @property
    def sizes(self) -> list[int]:
        """Batch sizes to capture, ascending; at least one: EngineArgs refuses those that no step can have."""
        graphs, max_num_rows = self.config.graphs, self.config.scheduler.max_num_seqs
        if graphs.max_capture_size is not None:
            max_num_rows = min(max_num_rows, graphs.max_capture_size)
        return bucket_sizes(max_num_rows, graphs.capture_sizes)

    def bytes_needed(self) -> int:
        """What all graphs and their buffers will take, seen on the two largest, which are let go again.

        What libraries and exchanges take once is no graph's: they have it before anything is counted.
        """
        kv_cache = self.model.allocate_kv_cache(1, self.config.cache.block_size)
        before = self._used()
        graphs = self._graphs(kv_cache)
        buffer_bytes = self._used() - before
        graphs.rehearse(self.sizes[-1])
        used = [self._used()]
        graphs.capture(self.sizes[-TRIAL_SIZES:], on_size=lambda: used.append(self._used()))
        del graphs, kv_cache
        self.memory.settle()
        if len(used) < 2:
            return 0  # nothing could be captured: the real capture will say so again
        further = max(LEAST_GRAPH_BYTES, used[-1] - used[1])
        return max(0, buffer_bytes + used[1] - used[0]) + further * (len(self.sizes) - 1)

    def captured(self, kv_cache: PagedKVCache) -> "tuple[DecodeGraphs, int]":
        """All graphs over the real cache, and the bytes that they took."""
        before = self._used()
        graphs = self._graphs(kv_cache)
        graphs.capture(self.sizes)
        return graphs, max(0, self._used() - before)

    def _graphs(self, kv_cache: PagedKVCache) -> "DecodeGraphs":
        # Imported here: Triton takes a while, and most CPUs do without it.
        from vllm_obs.engine.worker.decode_graphs import DecodeGraphs, GraphLimits

        config = self.config
        limits = GraphLimits(self.sizes[-1], config.model.max_model_len, config.cache.block_size)
        captures = Captures(self.make_maker(), self.shards)
        return DecodeGraphs(self.model, kv_cache, limits, captures)  # type: ignore[arg-type]

    def _used(self) -> int:
        """All that is taken of the device: a graph's own memory is not the allocator's."""
        self.memory.settle()
        free, total = self.memory.free_and_total()
        return total - free


def cuda_graph_set_up(
    config: VllmConfig, model: DecoderModel, memory: GpuMemory, shards: Shards = ALONE
) -> GraphSetUp:
    """The one whose graphs are CUDA's."""
    import torch

    from vllm_obs.engine.worker.cuda_graphs import CudaGraphMaker

    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    return GraphSetUp(config, model, lambda: CudaGraphMaker(stream), memory, shards)

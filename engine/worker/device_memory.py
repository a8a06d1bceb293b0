"""Free memory of a CUDA device for the KV cache, found by running the largest step once."""

import logging

import torch

from vllm_obs.engine.attention.batch import AttentionBatch
from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.model.interface import DecoderModel
from vllm_obs.engine.worker.gpu_memory import GpuMemory
from vllm_obs.engine.worker.memory import size_text

_logger = logging.getLogger(__name__)


def cuda_cache_budget(config: VllmConfig, model: DecoderModel, memory: GpuMemory, graph_bytes: int) -> int:
    """Bytes: --gpu-memory-utilization of the device, less what it holds at the peak of the largest step.

    `graph_bytes` are kept for CUDA graphs. What other processes hold counts as held. With a size given by the
    user: what is free after that step.
    """
    memory.settle()
    memory.watch_peak()
    run_largest_step(config, model, torch.device(config.model.device))
    peak = memory.peak()
    memory.settle()
    free, total = memory.free_and_total()
    outside = max(0, total - free - memory.reserved())
    taken = outside + peak + graph_bytes
    cache = config.cache
    has_size = cache.kv_cache_memory_bytes is not None or cache.num_gpu_blocks_override is not None
    usable = total if has_size else int(total * cache.gpu_memory_utilization)
    _logger.info(
        "GPU memory: %s, %s of it usable; the largest step takes %s, CUDA graphs %s, and others hold %s",
        *map(size_text, (total, usable, peak, graph_bytes, outside)),
    )
    return max(0, usable - taken)


@torch.inference_mode()
def run_largest_step(config: VllmConfig, model: DecoderModel, device: torch.device) -> None:
    """One prompt chunk of the whole token budget, then logits for every sequence a step can sample.

    All ranks of a model run it together; only the last stage has hidden states left to make logits of.
    """
    block_size = config.cache.block_size
    num_tokens = min(config.scheduler.max_num_batched_tokens, config.model.max_model_len)
    num_blocks = -(-num_tokens // block_size)
    positions = torch.arange(num_tokens, device=device)
    num_logits = min(config.scheduler.max_num_seqs, num_tokens)
    batch = AttentionBatch(
        num_decodes=int(num_tokens == 1),
        query_lens=[num_tokens],
        seq_lens=[num_tokens],
        block_tables=torch.arange(num_blocks, device=device)[None],
        slot_mapping=positions,
        logits_indices=torch.arange(num_logits, device=device),
    )
    kv_cache = model.allocate_kv_cache(num_blocks, block_size)
    hidden = model.forward(torch.zeros_like(positions), positions, batch, kv_cache)
    if len(hidden):
        model.compute_logits(hidden).sort(dim=-1)

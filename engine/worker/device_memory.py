"""Free memory of a CUDA device for the KV cache, found by running the largest step once."""

import torch

from vllm_obs.engine.attention.batch import AttentionBatch
from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.model.interface import DecoderModel


def cuda_cache_budget(config: VllmConfig, model: DecoderModel) -> int:
    """Bytes: --gpu-memory-utilization of the device, less what it holds at the peak of the largest step.

    What other processes hold counts as held. With a size given by the user: what is free after that step.
    """
    device = torch.device(config.model.device)
    torch.cuda.reset_peak_memory_stats(device)
    run_largest_step(config, model, device)
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    outside = max(0, total - free - torch.cuda.memory_reserved(device))
    cache = config.cache
    if cache.kv_cache_memory_bytes is not None or cache.num_gpu_blocks_override is not None:
        return max(0, total - outside - peak)
    return max(0, int(total * cache.gpu_memory_utilization) - outside - peak)


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

"""Drives a decoder over its paged cache for several sequences, as a model runner would, with scattered blocks."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from vllm_obs.engine.args import EngineArgs
from vllm_obs.engine.attention.batch import AttentionBatch
from vllm_obs.engine.config import Dtype, VllmConfig
from vllm_obs.engine.model.compiled_decoder import CompiledDecoder
from vllm_obs.engine.model.decoder import Decoder
from vllm_obs.engine.model.interface import DecoderModel
from vllm_obs.engine.model.loader import load_model, load_plain
from vllm_obs.engine.model.weights import open_weights


def model_config(model: str | Path | None, dtype: Dtype = "float32", load_format: str = "auto") -> VllmConfig:
    """A configuration with that model, at the length it was trained for, and defaults for the rest."""
    path = None if model is None else str(model)
    config = EngineArgs(model=path, dtype=dtype, load_format=load_format, device="cpu").create_engine_config()
    trained = config.model.architecture.max_position_embeddings
    return replace(config, model=replace(config.model, max_model_len=trained))


def load(
    model: str | Path | None, dtype: Dtype = "float32", load_format: str = "auto", max_model_len: int = 0
) -> DecoderModel:
    """The decoder of a model directory, a file, or the default model."""
    config = model_config(model, dtype, load_format)
    if max_model_len:
        config = replace(config, model=replace(config.model, max_model_len=max_model_len))
    return load_model(config)


def load_torch(model: str | Path) -> Decoder:
    """The decoder of torch operations in float32, also where compiled kernels would be taken."""
    config = model_config(model)
    return load_plain(config, open_weights(config.model))


Logits = Literal["last", "all", "none"]
_WANTED = {"last": slice(-1, None), "all": slice(None), "none": slice(0)}


class PagedRunner:
    """Sequences 0 … n-1 with `max_tokens` of room each, their blocks shuffled over the cache.

    Blocks are small, so that there are many, unless the model was compiled for others.
    """

    def __init__(self, model: DecoderModel, num_sequences: int, max_tokens: int, seed: int = 0) -> None:
        block_size = model.kernels.shape.block_size if isinstance(model, CompiledDecoder) else 4
        blocks_each = -(-max_tokens // block_size)
        generator = torch.Generator().manual_seed(seed)
        num_blocks = num_sequences * blocks_each
        self.model = model
        self.block_size = block_size
        self.cache = model.allocate_kv_cache(num_blocks + 1, block_size)
        self.tables = (torch.randperm(num_blocks, generator=generator) + 1).view(num_sequences, blocks_each)
        self.lengths = [0] * num_sequences

    def step(self, tokens: dict[int, list[int]], logits: Logits = "last") -> torch.Tensor:
        """Compute these tokens of these sequences in one pass.

        Logits, float32, in the order of `tokens`: of each sequence's last token, of all tokens, or of none. Rows
        of one token are put first for the batch, as its contract asks, and back in order for the answer.
        """
        return self.model.compute_logits(self.hidden(tokens, logits))

    def hidden(self, tokens: dict[int, list[int]], logits: Logits = "last") -> torch.Tensor:
        """The hidden states that a `step` makes logits of."""
        ordered = sorted(tokens, key=lambda sequence: len(tokens[sequence]) > 1)
        positions, slots, wanted = [], [], {}
        for sequence in ordered:
            start = self.lengths[sequence]
            self.lengths[sequence] += len(tokens[sequence])
            span = torch.arange(start, self.lengths[sequence])
            positions.append(span)
            blocks = self.tables[sequence, span // self.block_size]
            slots.append(blocks * self.block_size + span % self.block_size)
            end = sum(map(len, positions))
            wanted[sequence] = torch.arange(end - len(span), end)[_WANTED[logits]]
        batch = AttentionBatch(
            num_decodes=sum(len(tokens[sequence]) == 1 for sequence in ordered),
            query_lens=[len(tokens[sequence]) for sequence in ordered],
            seq_lens=[self.lengths[sequence] for sequence in ordered],
            block_tables=self.tables[ordered],
            slot_mapping=torch.cat(slots),
            logits_indices=torch.cat([wanted[sequence] for sequence in tokens]),
        )
        flat = torch.tensor([token for sequence in ordered for token in tokens[sequence]])
        return self.model.forward(flat, torch.cat(positions), batch, self.cache)

"""What steps are like where nothing was asked for: how large, by device, and whether they are planned ahead."""

from typing import NamedTuple

from vllm_obs.engine.config import Device, ParallelConfig
from vllm_obs.engine.errors import ConfigError

DEFAULT_MAX_NUM_SEQS: dict[Device, int] = {"cpu": 64, "cuda": 256}
DEFAULT_MAX_NUM_BATCHED_TOKENS: dict[Device, int] = {"cpu": 256, "cuda": 2048}
DEFAULT_MIXED_PREFILL_TOKENS: dict[Device, tuple[int | None, float]] = {"cpu": (24, 1.5), "cuda": (None, 0)}
"""In one step, and for each that decodes if that is more."""


class AskedSteps(NamedTuple):
    """What was asked of a step's size; None is worked out."""

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    enable_chunked_prefill: bool = True


def step_limits(asked: AskedSteps, device: Device, max_model_len: int) -> tuple[int, int]:
    """(max_num_seqs, max_num_batched_tokens): what was asked for, or defaults that fit each other.

    Every running sequence needs a token of the budget; without chunked prefill a whole prompt must fit it.
    """
    num_seqs, num_tokens = asked.max_num_seqs, asked.max_num_batched_tokens
    if num_tokens is None:
        num_tokens = max(DEFAULT_MAX_NUM_BATCHED_TOKENS[device], num_seqs or 0)
        num_tokens = num_tokens if asked.enable_chunked_prefill else max(num_tokens, max_model_len)
    if num_seqs is None:
        num_seqs = min(DEFAULT_MAX_NUM_SEQS[device], num_tokens)
    if num_tokens < num_seqs:
        raise ConfigError(f"--max-num-batched-tokens {num_tokens} is less than --max-num-seqs {num_seqs}")
    if not asked.enable_chunked_prefill and num_tokens < max_model_len:
        raise ConfigError(
            f"--max-num-batched-tokens {num_tokens} is less than the longest prompt, {max_model_len} tokens, "
            "which --no-enable-chunked-prefill needs in one step: raise it, lower --max-model-len, or allow chunks"
        )
    return num_seqs, num_tokens


def mixed_prefill_tokens(asked: int | None, device: Device) -> tuple[int | None, float]:
    """Tokens of prompts in a step in which others decode: how many, and for each of those if that is more."""
    return DEFAULT_MIXED_PREFILL_TOKENS[device] if asked is None else (asked, 0)


def is_async(asked: bool | None, device: Device, parallel: ParallelConfig) -> bool:
    """Whether steps are planned ahead: as asked, else where one rank computes on a GPU. ConfigError."""
    if asked and parallel.world_size > 1:
        raise ConfigError(
            f"--async-scheduling is for one rank, not {parallel.world_size}: others would not know what it sampled"
        )
    return device == "cuda" and parallel.world_size == 1 if asked is None else asked

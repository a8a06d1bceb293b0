"""The prompts of a synthetic load: token ids that are only as long, and only as alike, as their arrival says."""

from zlib import crc32

import numpy as np

from vllm_obs.engine.messages import Int32Array
from vllm_obs.engine.synthetic.regimes import Arrival

PREFIX_TOKENS = 64
"""How much of a prompt a shared prefix is."""
NUM_TOKEN_IDS = 256
"""Ids are below this: bytes, in the vocabulary of the built-in model."""


def prompt_of(arrival: Arrival, number: int) -> Int32Array:
    """Token ids, int32 (num_prompt_tokens,), of the arrival with this number: its prefix, then its very own."""
    length = arrival.num_prompt_tokens
    token_ids = np.random.default_rng(number).integers(0, NUM_TOKEN_IDS, length, np.int32)
    if arrival.prefix:
        num_shared = min(PREFIX_TOKENS, length - 1)
        rng = np.random.default_rng(crc32(arrival.prefix.encode()))
        token_ids[:num_shared] = rng.integers(0, NUM_TOKEN_IDS, num_shared, np.int32)
    return token_ids

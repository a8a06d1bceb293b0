"""What a synthetic rank says: tokens and log-probabilities that only depend on the sequence and the position."""

import struct
from zlib import crc32

import numpy as np

from vllm_obs.engine.config import ModelArchitecture
from vllm_obs.engine.messages import Logprobs, SamplingSpec

_BEST_LOGPROB = -0.25
_NEXT_LOGPROB = -3.0
"""Of the second best; each one after it is less by one. Together they stay below a probability of one."""
_PLACE = struct.Struct("<QQ")


class Filler:
    """Draws from the middle of a vocabulary, where tokens are words: its ends hold bytes and special tokens."""

    def __init__(self, architecture: ModelArchitecture) -> None:
        size = architecture.vocab_size
        special = {architecture.bos_token_id, *architecture.eos_token_ids}
        middle = range(size // 2, max(size // 2 + 1, size - size // 8))
        self._token_ids = [token_id for token_id in middle if token_id not in special] or [0]
        self._vocab_size = size

    def token(self, sampling: SamplingSpec, position: int) -> int:
        """The token at this position of a sequence; one of `allowed_token_ids` where there are any."""
        choices = sampling.allowed_token_ids or self._token_ids
        place = _PLACE.pack((sampling.seed + sampling.sequence_index) & (2**64 - 1), position)
        return choices[crc32(place) % len(choices)]

    def logprobs(self, token_ids: list[int], num_best: int) -> Logprobs:
        """`Logprobs` in which each of these tokens was the most probable, with `num_best` alternatives."""
        num_best = min(num_best, self._vocab_size)
        own = np.array(token_ids, np.int32)[:, None]
        best = (own + np.arange(num_best, dtype=np.int32)) % self._vocab_size
        ladder = [_BEST_LOGPROB, *(_NEXT_LOGPROB - step for step in range(num_best))][:num_best]
        row = np.array([_BEST_LOGPROB, *ladder], np.float32)
        return Logprobs(
            token_ids=np.concatenate([own, best], axis=1).astype(np.int32),
            logprobs=np.tile(row, (len(token_ids), 1)),
            ranks=np.ones(len(token_ids), np.int32),
        )

"""The matrices of a model that are shared between ranks, and what each shard's product means to the others."""

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation

from vllm_obs.engine.config import ModelArchitecture
from vllm_obs.engine.model.linear import Linear
from vllm_obs.engine.model.peers import Peers, Place
from vllm_obs.engine.model.stage_ends import Inlet


class RowParallelLinear:
    """A product over the shard's part of the inputs; the sum over the shards is the product (Megatron-LM)."""

    def __init__(self, linear: Linear, peers: Peers) -> None:
        self._linear = linear
        self._peers = peers

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._peers.total(self._linear(x))


class Embedding:
    """Rows of the matrix (vocab, hidden), in float32."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        return F.embedding(token_ids, self.weight).float()


class VocabParallelEmbedding:
    """The rows of the shard's words; zeros for the others, whose rows another shard has."""

    def __init__(self, weight: torch.Tensor, words: range, peers: Peers) -> None:
        self._weight = weight
        self._words = words
        self._peers = peers

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        if not len(self._words):
            return self._peers.total(torch.zeros(len(token_ids), self._weight.shape[1], device=token_ids.device))
        places = token_ids - self._words.start
        is_elsewhere = (places < 0) | (places >= len(self._words))
        rows = F.embedding(places.masked_fill_(is_elsewhere, 0), self._weight).float()
        return self._peers.total(rows.masked_fill_(is_elsewhere.unsqueeze(1), 0.0))


class VocabParallelHead:
    """Logits of the shard's words from hidden states; all words' on the first shard, no words' on the others.

    The parts of what was asked for last are kept on the first shard: when a row has to be sampled again from the
    same hidden states, nobody else has to do anything again.
    """

    def __init__(self, linear: Linear | None, vocab_size: int, num_shards: int, peers: Peers) -> None:
        self._linear = linear
        self._vocab_size = vocab_size
        self._num_each = -(-vocab_size // num_shards)
        self._peers = peers
        self._asked: torch.Tensor | None = None
        self._parts: list[torch.Tensor] = []

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden (R, hidden) float32 → (R, vocab) float32, or (R, 0)."""
        if self._asked is not hidden:
            self._parts = self._peers.gathered(self._own_part(hidden))
            self._asked = hidden if self._parts else None
        if not self._parts:
            return hidden.new_empty(len(hidden), 0)
        begins = range(0, self._vocab_size, self._num_each)
        words = [part[:, : self._vocab_size - begin] for part, begin in zip(self._parts, begins, strict=False)]
        return torch.cat(words, dim=1)

    def _own_part(self, hidden: torch.Tensor) -> torch.Tensor:
        """(R, words of every shard but the last ones), which have less: there it is filled up."""
        if self._linear is None:
            return hidden.new_zeros(len(hidden), self._num_each)
        part = self._linear(hidden)
        return F.pad(part, (0, self._num_each - part.shape[1])) if part.shape[1] < self._num_each else part


def embedding_of(weight: torch.Tensor, place: Place, architecture: ModelArchitecture) -> Inlet:
    """The embedding over the rows that a rank of the first stage has."""
    partition, peers = place
    if partition.num_shards == 1:
        return Embedding(weight)
    return VocabParallelEmbedding(weight, partition.words(architecture), peers)


def head_of(own_words: Linear | None, place: Place, architecture: ModelArchitecture) -> Linear:
    """The head over what a rank of the last stage has; None where that is no word at all."""
    partition, peers = place
    if partition.num_shards > 1:
        return VocabParallelHead(own_words, architecture.vocab_size, partition.num_shards, peers)
    assert own_words is not None
    return own_words

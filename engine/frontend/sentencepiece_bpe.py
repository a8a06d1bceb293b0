"""The `llama` tokenizer model of GGUF files: sentencepiece BPE, as a `tokenizers` back end."""

from typing import Any

import tokenizers as hf
from tokenizers import models, normalizers


def sentencepiece_backend(metadata: dict[str, Any]) -> hf.Tokenizer:
    """Merging by score, with bytes for what the vocabulary lacks.

    Sentencepiece joins the neighbours whose joint piece scores best. Every way to cut a piece in two pieces of the
    vocabulary, ordered by the whole's score, gives the same joins as a merge list (Kudo and Richardson, 2018).
    """
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    scores: list[float] = metadata["tokenizer.ggml.scores"]
    vocab = {token: i for i, token in enumerate(tokens)}
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    backend = hf.Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=_merges(vocab, scores),
            unk_token=tokens[unknown],
            fuse_unk=True,
            byte_fallback="<0x00>" in vocab,
        )
    )
    steps: list[Any] = [normalizers.Replace(" ", "▁")]
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        steps.insert(0, normalizers.Prepend("▁"))
    backend.normalizer = normalizers.Sequence(steps)
    return backend


def _merges(vocab: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    ranked = [
        (-scores[whole], vocab[left], vocab[right], left, right)
        for piece, whole in vocab.items()
        for left, right in _cuts(piece)
        if left in vocab and right in vocab
    ]
    return [(left, right) for *_, left, right in sorted(ranked)]


def _cuts(piece: str) -> list[tuple[str, str]]:
    return [(piece[:i], piece[i:]) for i in range(1, len(piece))]

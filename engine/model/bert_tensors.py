"""The tensors an encoder of the BERT family is made of: their names without a prefix, and their shapes."""

from collections.abc import Iterator, Mapping

from vllm_obs.engine.config import ModelArchitecture
from vllm_obs.engine.model.safetensors_header import StoredTensor

WORDS = "embeddings.word_embeddings.weight"
POSITIONS = "embeddings.position_embeddings.weight"
TOKEN_TYPES = "embeddings.token_type_embeddings.weight"
EMBEDDING_NORM = "embeddings.LayerNorm"

_PREFIXES = ("bert.", "roberta.")
_OLD_ENDINGS = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


def encoder_prefix(layer: int) -> str:
    """What the names of a layer's tensors begin with."""
    return f"encoder.layer.{layer}."


def bert_tensors(architecture: ModelArchitecture) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(name, shape) of every tensor that must be there."""
    hidden, inner = architecture.hidden_size, architecture.intermediate_size
    yield WORDS, (architecture.vocab_size, hidden)
    yield POSITIONS, (architecture.max_position_embeddings + architecture.position_offset, hidden)
    yield TOKEN_TYPES, (architecture.num_token_types, hidden)
    yield from _pair(EMBEDDING_NORM, (hidden,))
    for layer in range(architecture.num_layers):
        prefix = encoder_prefix(layer)
        for name in ("query", "key", "value"):
            yield from _pair(f"{prefix}attention.self.{name}", (hidden, hidden))
        yield from _pair(prefix + "attention.output.dense", (hidden, hidden))
        yield from _pair(prefix + "attention.output.LayerNorm", (hidden,))
        yield from _pair(prefix + "intermediate.dense", (inner, hidden))
        yield from _pair(prefix + "output.dense", (hidden, inner))
        yield from _pair(prefix + "output.LayerNorm", (hidden,))


def _pair(name: str, shape: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield name + ".weight", shape
    yield name + ".bias", shape[:1]


def bare_names(table: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """The tensors by the names above, whatever a checkpoint put before them; each keeps its own name."""
    return {_bare(name): place._replace(name=name) for name, place in table.items()}


def _bare(name: str) -> str:
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    for old, new in _OLD_ENDINGS.items():
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name

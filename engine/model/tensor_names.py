"""The tensors a decoder is made of: their Hugging Face names, their shapes, and their names in GGUF."""

import re
from collections.abc import Iterator, Mapping

from vllm_obs.engine.config import ModelArchitecture
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.model.bert_tensors import bert_tensors

Shape = tuple[int, ...]

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
LM_HEAD = "lm_head.weight"

_GGUF_TOP = {EMBEDDING: "token_embd.weight", FINAL_NORM: "output_norm.weight", LM_HEAD: "output.weight"}
_GGUF_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_LAYER_NAME = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")


def gguf_name(name: str) -> str:
    """The name that a tensor with this Hugging Face name has in a GGUF file."""
    if name in _GGUF_TOP:
        return _GGUF_TOP[name]
    match = _LAYER_NAME.fullmatch(name)
    assert match is not None, name
    layer, part, kind = match.groups()
    return f"blk.{layer}.{_GGUF_LAYER[part]}.{kind}"


def layer_prefix(layer: int) -> str:
    """What the names of a layer's tensors begin with."""
    return f"model.layers.{layer}."


def expected_tensors(architecture: ModelArchitecture) -> Iterator[tuple[str, Shape]]:
    """(name, shape) of every tensor that must be there."""
    if architecture.is_encoder:
        yield from bert_tensors(architecture)
        return
    hidden = architecture.hidden_size
    yield EMBEDDING, (architecture.vocab_size, hidden)
    for layer in range(architecture.num_layers):
        for name, shape in _layer_tensors(architecture):
            yield layer_prefix(layer) + name, shape
    yield FINAL_NORM, (hidden,)
    if not architecture.tie_word_embeddings:
        yield LM_HEAD, (architecture.vocab_size, hidden)


def _layer_tensors(architecture: ModelArchitecture) -> list[tuple[str, Shape]]:
    hidden, inner, head_dim = architecture.hidden_size, architecture.intermediate_size, architecture.head_dim
    queries, keys = architecture.num_heads * head_dim, architecture.num_kv_heads * head_dim
    tensors: list[tuple[str, Shape]] = [
        ("input_layernorm.weight", (hidden,)),
        ("self_attn.q_proj.weight", (queries, hidden)),
        ("self_attn.k_proj.weight", (keys, hidden)),
        ("self_attn.v_proj.weight", (keys, hidden)),
        ("self_attn.o_proj.weight", (hidden, queries)),
        ("post_attention_layernorm.weight", (hidden,)),
        ("mlp.gate_proj.weight", (inner, hidden)),
        ("mlp.up_proj.weight", (inner, hidden)),
        ("mlp.down_proj.weight", (hidden, inner)),
    ]
    if architecture.attention_bias:
        tensors += [
            ("self_attn.q_proj.bias", (queries,)),
            ("self_attn.k_proj.bias", (keys,)),
            ("self_attn.v_proj.bias", (keys,)),
        ]
    if architecture.qk_norm:
        tensors += [("self_attn.q_norm.weight", (head_dim,)), ("self_attn.k_norm.weight", (head_dim,))]
    return tensors


def check_tensors(architecture: ModelArchitecture, shapes: Mapping[str, Shape], place: str) -> None:
    """ConfigError that names the first tensor missing from `shapes`, or of another shape."""
    for name, expected in expected_tensors(architecture):
        found = shapes.get(name)
        if found is None:
            raise ConfigError(f"{place}: tensor {name} of shape {list(expected)} is missing")
        if found != expected:
            raise ConfigError(
                f"{place}: tensor {name} has shape {list(found)}, but the configuration asks for {list(expected)}"
            )

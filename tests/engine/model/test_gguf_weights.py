"""Dequantised GGUF tensors against the gguf library, and a GGUF model against the same model in safetensors."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf_files import INNER, NUM_HEADS, NUM_KV_HEADS, NUM_LAYERS, VOCAB, WIDTH, tiny_tensors, write_gguf
from paged_runner import PagedRunner, load
from tiny_models import TINY_CONFIG, write_model

from vllm_obs.engine.model.gguf_file import BLOCK_TYPES
from vllm_obs.engine.model.gguf_weights import dequantised, eight_bit_values, four_bit_values

TYPE_NAMES = [block_type.name for block_type in BLOCK_TYPES.values()]
NUM_ROWS, ROW = 37, 512


def random_bytes(type_name: str) -> np.ndarray:
    """Rows of random blocks whose float16 parts are ordinary numbers."""
    kind = gguf.GGMLQuantizationType[type_name]
    random = np.random.default_rng(7)
    values = random.standard_normal((NUM_ROWS, ROW)).astype(np.float32)
    if type_name in ("Q4_K", "Q5_K", "Q6_K"):  # the library reads these but does not write them
        num_elements, num_bytes = gguf.GGML_QUANT_SIZES[kind]
        blocks = random.integers(0, 256, (NUM_ROWS, ROW // num_elements, num_bytes), np.uint8)
        halves = random.standard_normal((*blocks.shape[:2], 2)).astype(np.float16).view(np.uint8)
        blocks[..., slice(-2, None) if type_name == "Q6_K" else slice(0, 4)] = halves[
            ..., : 2 if type_name == "Q6_K" else 4
        ]
        return blocks.reshape(NUM_ROWS, -1)
    return gguf.quantize(values, kind).view(np.uint8).reshape(NUM_ROWS, -1)


@pytest.mark.parametrize("type_name", TYPE_NAMES)
def test_every_type_is_dequantised_to_the_librarys_values(type_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm_obs.engine.model.gguf_weights._BLOCKS_AT_ONCE", 5)  # so that chunks end unevenly
    raw = random_bytes(type_name)
    expected = gguf.dequantize(raw, gguf.GGMLQuantizationType[type_name])
    found = dequantised(raw, type_name)
    assert found.dtype == np.float32
    assert np.isfinite(found).all()
    assert np.array_equal(found.reshape(NUM_ROWS, ROW), expected)


@pytest.mark.parametrize("type_name", ["Q4_0", "Q4_1"])
def test_four_bit_values_are_the_librarys_to_the_bit(type_name: str) -> None:
    raw = random_bytes(type_name)
    expected = gguf.dequantize(raw, gguf.GGMLQuantizationType[type_name])
    assert np.array_equal(four_bit_values(raw, type_name), expected)


def test_eight_bit_values_are_the_librarys_to_the_bit() -> None:
    raw = random_bytes("Q8_0")
    assert np.array_equal(eight_bit_values(raw), gguf.dequantize(raw, gguf.GGMLQuantizationType.Q8_0))


@pytest.mark.parametrize("type_name", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_a_gguf_model_answers_like_the_same_weights_in_safetensors(type_name: str, tmp_path: Path) -> None:
    kind = gguf.GGMLQuantizationType[type_name]
    model = load(write_gguf(tmp_path / "tiny.gguf", kind=kind))
    same = load(write_model(tmp_path / "hf", HF_CONFIG, hugging_face_tensors(kind)))
    tokens = list(range(3, 20))
    logits = [PagedRunner(each, 1, 32).step({0: tokens}, logits="all") for each in (model, same)]
    torch.testing.assert_close(*logits, atol=1e-5, rtol=1e-5)


HF_CONFIG = TINY_CONFIG | {
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": NUM_HEADS,
    "num_key_value_heads": NUM_KV_HEADS,
    "vocab_size": VOCAB,
    "tie_word_embeddings": True,
}


def hugging_face_tensors(kind: gguf.GGMLQuantizationType) -> dict[str, torch.Tensor]:
    """The tiny GGUF model's tensors, rounded as its file rounds them, as a converter would write them."""
    parts = {
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    top = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    tensors = {}
    for name, values in tiny_tensors().items():
        rounded = gguf.dequantize(gguf.quantize(values, kind), kind) if values.ndim > 1 else values
        tensor = torch.from_numpy(np.array(rounded))
        if name in top:
            tensors[top[name]] = tensor
            continue
        _, layer, part, _ = name.split(".")
        if part in ("attn_q", "attn_k"):  # rows i and i + 1 of a pair go to i and i + head_dim / 2
            heads = tensor.view(-1, WIDTH // NUM_HEADS, WIDTH)
            tensor = torch.cat((heads[:, 0::2], heads[:, 1::2]), 1).reshape(-1, WIDTH)
        tensors[f"model.layers.{layer}.{parts[part]}.weight"] = tensor
    return tensors

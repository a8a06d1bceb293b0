"""Small GGUF files for tests, written by the gguf library."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np

WIDTH, INNER, NUM_LAYERS, NUM_HEADS, NUM_KV_HEADS, VOCAB = 64, 96, 2, 4, 2, 48


def write_gguf(
    path: Path,
    architecture: str = "llama",
    metadata: dict[str, Any] | None = None,
    tensors: dict[str, np.ndarray] | None = None,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
) -> Path:
    """A tiny model; `metadata` (short keys, None leaves one out) and `tensors` change what the defaults are."""
    writer = gguf.GGUFWriter(path, architecture)
    keys = {
        "block_count": NUM_LAYERS,
        "context_length": 128,
        "embedding_length": WIDTH,
        "feed_forward_length": INNER,
        "attention.head_count": NUM_HEADS,
        "attention.head_count_kv": NUM_KV_HEADS,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
    } | (metadata or {})
    for key, value in keys.items():
        if isinstance(value, str):
            writer.add_string(f"{architecture}.{key}", value)
        elif isinstance(value, float):
            writer.add_float32(f"{architecture}.{key}", value)
        elif value is not None:
            writer.add_uint32(f"{architecture}.{key}", value)
    writer.add_token_list([f"t{number}" for number in range(VOCAB)])
    writer.add_token_merges(["a b", "b ☃"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(5)
    writer.add_chat_template("{{ messages }}")
    for name, values in (tensors or tiny_tensors()).items():
        stored = kind if values.ndim > 1 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quantize(values, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tiny_tensors() -> dict[str, np.ndarray]:
    """Random float32 tensors under GGUF names."""
    random = np.random.default_rng(3)
    head_dim = WIDTH // NUM_HEADS
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (VOCAB, WIDTH), "output_norm.weight": (WIDTH,)}
    for layer in range(NUM_LAYERS):
        shapes |= {
            f"blk.{layer}.attn_norm.weight": (WIDTH,),
            f"blk.{layer}.attn_q.weight": (WIDTH, WIDTH),
            f"blk.{layer}.attn_k.weight": (NUM_KV_HEADS * head_dim, WIDTH),
            f"blk.{layer}.attn_v.weight": (NUM_KV_HEADS * head_dim, WIDTH),
            f"blk.{layer}.attn_output.weight": (WIDTH, WIDTH),
            f"blk.{layer}.ffn_norm.weight": (WIDTH,),
            f"blk.{layer}.ffn_gate.weight": (INNER, WIDTH),
            f"blk.{layer}.ffn_up.weight": (INNER, WIDTH),
            f"blk.{layer}.ffn_down.weight": (WIDTH, INNER),
        }
    return {
        name: (random.standard_normal(shape) * shape[-1] ** -0.5 + (len(shape) == 1)).astype(np.float32)
        for name, shape in shapes.items()
    }

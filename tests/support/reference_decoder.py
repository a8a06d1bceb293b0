"""A decoder written down plainly: float64, full attention over one sequence, no cache, rotary halves apart."""

import math
from typing import Any

import torch

Tensors = dict[str, torch.Tensor]


def reference_logits(values: dict[str, Any], tensors: Tensors, tokens: list[int]) -> torch.Tensor:
    """Logits (len(tokens), vocab) in float64 of the model that config.json and tensors describe."""
    tensors = {name: tensor.double() for name, tensor in tensors.items()}
    embedding = tensors["model.embed_tokens.weight"]
    x = embedding[torch.tensor(tokens)]
    for layer in range(values["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        part = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
        x = x + _attention(values, part, _norm(x, part["input_layernorm.weight"], values), _window(values, layer))
        y = _norm(x, part["post_attention_layernorm.weight"], values)
        gate, up = y @ part["mlp.gate_proj.weight"].T, y @ part["mlp.up_proj.weight"].T
        x = x + (gate / (1 + torch.exp(-gate)) * up) @ part["mlp.down_proj.weight"].T
    head = embedding if values["tie_word_embeddings"] else tensors["lm_head.weight"]
    return _norm(x, tensors["model.norm.weight"], values) @ head.T


def _norm(x: torch.Tensor, weight: torch.Tensor, values: dict[str, Any]) -> torch.Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + values["rms_norm_eps"]) * weight


def _window(values: dict[str, Any], layer: int) -> int | None:
    if values["architectures"][0].startswith("Qwen"):
        windowed = values.get("use_sliding_window") and layer >= values["max_window_layers"]
        return values["sliding_window"] if windowed else None
    return values.get("sliding_window")


def _attention(values: dict[str, Any], part: Tensors, x: torch.Tensor, window: int | None) -> torch.Tensor:
    num_heads, num_kv_heads = values["num_attention_heads"], values["num_key_value_heads"]
    head_dim = values.get("head_dim", values["hidden_size"] // num_heads)

    def project(name: str, heads: int) -> torch.Tensor:
        y = x @ part[f"self_attn.{name}_proj.weight"].T + part.get(f"self_attn.{name}_proj.bias", 0)
        y = y.view(len(x), heads, head_dim)
        norm = part.get(f"self_attn.{name}_norm.weight")
        return y if norm is None else _norm(y, norm, values)

    queries, keys = (_rotated(project(*which), values) for which in (("q", num_heads), ("k", num_kv_heads)))
    values_ = project("v", num_kv_heads)
    outputs = torch.zeros(len(x), num_heads, head_dim, dtype=torch.float64)
    for head in range(num_heads):
        shared = head // (num_heads // num_kv_heads)
        for i in range(len(x)):
            first = 0 if window is None else max(0, i - window + 1)
            scores = keys[first : i + 1, shared] @ queries[i, head] / math.sqrt(head_dim)
            outputs[i, head] = scores.softmax(0) @ values_[first : i + 1, shared]
    return outputs.view(len(x), -1) @ part["self_attn.o_proj.weight"].T + part.get("self_attn.o_proj.bias", 0)


def _rotated(x: torch.Tensor, values: dict[str, Any]) -> torch.Tensor:
    head_dim = x.shape[-1]
    frequencies, magnitude = _frequencies(values, head_dim)
    first, second = x[..., : head_dim // 2], x[..., head_dim // 2 :]
    for position in range(len(x)):
        for pair in range(head_dim // 2):
            angle = position * frequencies[pair]
            cos, sin = magnitude * math.cos(angle), magnitude * math.sin(angle)
            a, b = first[position, :, pair].clone(), second[position, :, pair].clone()
            first[position, :, pair] = a * cos - b * sin
            second[position, :, pair] = b * cos + a * sin
    return torch.cat((first, second), -1)


def _frequencies(values: dict[str, Any], head_dim: int) -> tuple[list[float], float]:
    """Rotary frequencies one by one, and the length of the rotation, for each kind of scaling."""
    scaling = values.get("rope_scaling") or {"rope_type": "default"}
    base, longest = values["rope_theta"], values["max_position_embeddings"]
    kind, factor = scaling["rope_type"], scaling.get("factor", 1.0)
    if kind == "dynamic":  # served length is twice the trained one in these tests
        original = scaling["original_max_position_embeddings"]
        base *= (factor * longest / original - (factor - 1)) ** (head_dim / (head_dim - 2))
    plain = [base ** (-2 * pair / head_dim) for pair in range(head_dim // 2)]
    if kind == "linear":
        return [frequency / factor for frequency in plain], 1.0
    if kind == "llama3":
        return [_llama3(frequency, scaling) for frequency in plain], 1.0
    if kind == "yarn":
        return _yarn(plain, base, head_dim, scaling), 0.1 * math.log(factor) + 1.0
    return plain, 1.0


def _llama3(frequency: float, scaling: dict[str, Any]) -> float:
    original, factor = scaling["original_max_position_embeddings"], scaling["factor"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    wavelength = 2 * math.pi / frequency
    if wavelength < original / high:
        return frequency
    if wavelength > original / low:
        return frequency / factor
    smooth = (original / wavelength - low) / (high - low)
    return (1 - smooth) * frequency / factor + smooth * frequency


def _yarn(plain: list[float], base: float, head_dim: int, scaling: dict[str, Any]) -> list[float]:
    original, factor = scaling["original_max_position_embeddings"], scaling["factor"]

    def dimension(turns: float) -> float:
        return head_dim * math.log(original / (2 * math.pi * turns)) / (2 * math.log(base))

    low = max(0, math.floor(dimension(32)))
    high = min(head_dim - 1, math.ceil(dimension(1)))
    scaled = []
    for pair, frequency in enumerate(plain):
        ramp = min(1.0, max(0.0, (pair - low) / (high - low)))
        scaled.append(frequency / factor * ramp + frequency * (1 - ramp))
    return scaled

"""Rotary position embedding: frequencies with their scalings, and the table of rotations by position."""

import math
from typing import Any

import torch

from vllm_obs.engine.config import ModelArchitecture


def rotation_table(architecture: ModelArchitecture, num_positions: int) -> torch.Tensor:
    """Rotations as complex64 (num_positions, head_dim / 2): pair i of position p is multiplied by table[p, i].

    Scalings: linear, llama3, yarn, and GGUF's frequency factors. `dynamic` (NTK) is computed once for
    `num_positions`, the longest context served: unlike an unbatched implementation, a cached key must not change
    when its sequence grows, so it equals the original only at that length, or below the trained one when
    `num_positions` is.
    """
    frequencies, magnitude = _scaled_frequencies(architecture, num_positions)
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float64), frequencies)
    return torch.polar(torch.full_like(angles, magnitude), angles).to(torch.complex64)


def interleaved_order(num_heads: int, head_dim: int) -> torch.Tensor:
    """Row order that turns heads with rotary halves apart (i, i + d/2) into heads with pairs side by side."""
    order = torch.arange(num_heads * head_dim).view(num_heads, 2, head_dim // 2)
    return order.transpose(1, 2).reshape(-1)


def _scaled_frequencies(architecture: ModelArchitecture, num_positions: int) -> tuple[torch.Tensor, float]:
    """(float64 frequencies (head_dim / 2,), factor on the rotated vector's length)."""
    scaling = architecture.rope_scaling or {}
    base, head_dim = architecture.rope_theta, architecture.head_dim
    frequencies = _frequencies(base, head_dim)
    match scaling.get("rope_type"):
        case "linear":
            return frequencies / scaling["factor"], 1.0
        case "factors":
            return frequencies / torch.tensor(scaling["factors"], dtype=torch.float64), 1.0
        case "dynamic":
            return _frequencies(_dynamic_base(architecture, scaling, num_positions), head_dim), 1.0
        case "llama3":
            return _llama3(frequencies, scaling), 1.0
        case "yarn":
            return _yarn(architecture, scaling)
    return frequencies, 1.0


def _frequencies(base: float, head_dim: int) -> torch.Tensor:
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    return torch.exp(-exponents * math.log(base))


def _original_length(architecture: ModelArchitecture, scaling: dict[str, Any]) -> int:
    return int(scaling.get("original_max_position_embeddings") or architecture.max_position_embeddings)


def _dynamic_base(architecture: ModelArchitecture, scaling: dict[str, Any], num_positions: int) -> float:
    original = _original_length(architecture, scaling)
    stretch = scaling["factor"] * max(num_positions, original) / original - (scaling["factor"] - 1)
    return float(architecture.rope_theta * stretch ** (architecture.head_dim / (architecture.head_dim - 2)))


def _llama3(frequencies: torch.Tensor, scaling: dict[str, Any]) -> torch.Tensor:
    """Llama 3.1's scaling: long wavelengths are stretched, short ones kept, those between blended."""
    turns = frequencies * float(scaling["original_max_position_embeddings"]) / (2 * math.pi)
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return frequencies * (kept + (1 - kept) / float(scaling["factor"]))


def _yarn(architecture: ModelArchitecture, scaling: dict[str, Any]) -> tuple[torch.Tensor, float]:
    """YaRN (Peng et al., 2023): interpolation by frequency, and a temperature on the attention logits."""
    frequencies = _frequencies(architecture.rope_theta, architecture.head_dim)
    original = _original_length(architecture, scaling)
    low = _yarn_dimension(architecture, original, scaling.get("beta_fast") or 32)
    high = _yarn_dimension(architecture, original, scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, architecture.head_dim - 1)
    dimensions = torch.arange(len(frequencies), dtype=torch.float64)
    interpolated = ((dimensions - low) / max(high - low, 0.001)).clamp(0, 1)
    scaled = frequencies * (1 - interpolated + interpolated / scaling["factor"])
    return scaled, _yarn_magnitude(scaling)


def _yarn_dimension(architecture: ModelArchitecture, original: int, turns: float) -> float:
    """The (fractional) pair whose frequency makes that many turns over the original length."""
    base = math.log(architecture.rope_theta)
    return architecture.head_dim * math.log(original / (turns * 2 * math.pi)) / (2 * base)


def _yarn_magnitude(scaling: dict[str, Any]) -> float:
    if (given := scaling.get("attention_factor")) is not None:
        return float(given)
    factor, mscale, all_dim = scaling["factor"], scaling.get("mscale"), scaling.get("mscale_all_dim")
    if mscale and all_dim:
        return _mscale(factor, mscale) / _mscale(factor, all_dim)
    return _mscale(factor, 1.0)


def _mscale(factor: float, weight: float) -> float:
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

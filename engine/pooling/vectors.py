"""What is done to a prompt's vector after the engine made it: cut, brought to length one, compared."""

from collections.abc import Sequence

import numpy as np

from vllm_obs.engine.config import ModelConfig, PoolingConfig
from vllm_obs.engine.errors import RequestError
from vllm_obs.engine.messages import Float32Array


def finished(vector: Float32Array, normalize: bool, dimensions: int | None = None) -> Float32Array:
    """The vector's first `dimensions` numbers, at length one where asked for (zeros stay zeros); float32."""
    kept = vector if dimensions is None else vector[:dimensions]
    if not normalize:
        return kept
    wide = kept.astype(np.float64)
    length = np.sqrt(wide @ wide)
    return (wide / length if length else wide).astype(np.float32)


def cosines(vectors: Sequence[Float32Array], others: Sequence[Float32Array]) -> list[float]:
    """The cosine of each pair, in [-1, 1]; one vector alone is compared with all the others."""
    left = np.stack(vectors).astype(np.float64)
    right = np.stack(others).astype(np.float64)
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    products = (left * right).sum(axis=1)
    ratios = np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)
    values: list[float] = ratios.clip(-1.0, 1.0).tolist()  # rounding goes beyond
    return values


def check_dimensions(dimensions: int | None, model: ModelConfig) -> None:
    """RequestError unless the model's vectors may be cut to so many numbers."""
    width, pooling = model.architecture.hidden_size, model.pooling
    if dimensions is None or dimensions == width:
        return
    if not pooling.is_matryoshka:
        message = f"This model's vectors have {width} numbers and cannot be cut to {dimensions}."
        raise RequestError(message, "dimensions")
    if dimensions > width or dimensions not in (pooling.matryoshka_dimensions or (dimensions,)):
        raise RequestError(f"dimensions={dimensions}: this model's may be {_sizes(pooling, width)}.", "dimensions")


def _sizes(pooling: PoolingConfig, width: int) -> str:
    return ", ".join(map(str, pooling.matryoshka_dimensions[:16])) or f"1 to {width}"

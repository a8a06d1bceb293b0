"""How many tokens of context a model is run with: as asked, its own default, or all that its positions reach."""

from vllm_obs.engine.config import ModelArchitecture
from vllm_obs.engine.errors import ConfigError


def context_length(asked: int | None, architecture: ModelArchitecture, default_length: int | None) -> int:
    """In tokens. ConfigError for more than the model's positions."""
    limit = model_length_limit(architecture)
    if asked is not None and asked > limit:
        raise ConfigError(f"--max-model-len {asked} is more than the model's {limit} positions")
    return asked or min(limit, default_length or limit)


def model_length_limit(architecture: ModelArchitecture) -> int:
    """The most positions the model's rotary embedding reaches, its scaling included.

    linear and dynamic stretch max_position_embeddings by their factor, yarn the length before it; the other
    kinds (llama3, longrope) already say the stretched length.
    """
    scaling = architecture.rope_scaling or {}
    kind = scaling.get("rope_type", scaling.get("type"))
    factor = float(scaling.get("factor", 1.0))
    if kind in ("linear", "dynamic"):
        return int(architecture.max_position_embeddings * factor)
    if kind == "yarn" and "original_max_position_embeddings" in scaling:
        return int(scaling["original_max_position_embeddings"] * factor)
    return architecture.max_position_embeddings

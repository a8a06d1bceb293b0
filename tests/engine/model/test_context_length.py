"""How many tokens of context a model is run with."""

from dataclasses import replace

import pytest
from fake_executor import tiny_config

from vllm_obs.engine.config import ModelArchitecture
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.model.context_length import context_length, model_length_limit

ARCHITECTURE = replace(tiny_config().model.architecture, max_position_embeddings=1000)


def with_scaling(**scaling: object) -> ModelArchitecture:
    return replace(ARCHITECTURE, rope_scaling=scaling)


@pytest.mark.parametrize(
    ("architecture", "limit"),
    [
        (ARCHITECTURE, 1000),
        (with_scaling(rope_type="linear", factor=4.0), 4000),
        (with_scaling(type="dynamic", factor=2.0), 2000),
        (with_scaling(rope_type="yarn", factor=4.0, original_max_position_embeddings=500), 2000),
        (with_scaling(rope_type="llama3", factor=8.0, original_max_position_embeddings=125), 1000),
    ],
)
def test_scaled_rope_stretches_the_longest_length(architecture: ModelArchitecture, limit: int) -> None:
    assert model_length_limit(architecture) == limit


def test_the_length_is_as_asked_or_the_models_own_but_never_more_than_its_positions() -> None:
    assert [context_length(asked, ARCHITECTURE, 500) for asked in (None, 700)] == [500, 700]
    assert [context_length(None, ARCHITECTURE, default) for default in (None, 2000)] == [1000, 1000]
    with pytest.raises(ConfigError, match="--max-model-len 1001 is more than the model's 1000 positions"):
        context_length(1001, ARCHITECTURE, None)

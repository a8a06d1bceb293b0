"""How requests are sampled that do not say: the model's file, the operator's word, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from vllm_obs.engine.config import GenerationConfig
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.generation_defaults import GENERATION_FILE, generation_config


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A model's directory with advice, and with fields that are none."""
    advice = {"temperature": 0.6, "top_k": 20, "top_p": None, "do_sample": True, "eos_token_id": [1, 2]}
    (tmp_path / GENERATION_FILE).write_text(json.dumps(advice))
    return str(tmp_path)


def test_the_models_own_advice_holds(model: str) -> None:
    assert generation_config("auto", model, {}) == GenerationConfig(temperature=0.6, top_k=20)


def test_vllm_means_the_apis_own_defaults(model: str) -> None:
    assert generation_config("vllm", model, {}) == GenerationConfig()


def test_the_operator_has_the_last_word(model: str) -> None:
    found = generation_config("auto", model, {"temperature": 0, "max_new_tokens": 64})
    assert found == GenerationConfig(temperature=0, top_k=20, max_new_tokens=64)


def test_a_model_without_advice_gives_none(tmp_path: Path) -> None:
    assert generation_config("auto", str(tmp_path), {}) == GenerationConfig()
    assert generation_config("auto", str(tmp_path / "model.gguf"), {}) == GenerationConfig()


def test_a_directory_that_is_named_must_have_advice(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no .*generation_config\.json"):
        generation_config(str(tmp_path), "", {})


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ({"temperature": 2.5}, "temperature 2.5 is not a number between 0 and 2"),
        ({"top_k": 1.5}, "top_k 1.5 is not a whole number"),
        ({"max_new_tokens": 0}, "max_new_tokens 0 is not a whole number between 1"),
        ({"top_p": float("nan")}, "top_p nan"),
        ({"min_p": True}, "min_p True"),
        ({"do_sample": True}, "do_sample is not supported; supported: temperature"),
    ],
)
def test_what_is_out_of_range_or_unknown_is_refused(override: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        generation_config("vllm", "", override)

"""How a model pools: what its files say, what the flag changes, and what is refused by name."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from default_model import default_model_config

from vllm_obs.engine.config import ModelArchitecture, PoolingConfig, from_wire, to_wire
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.pooling.model_files import longest_text, model_pooling
from vllm_obs.engine.pooling.override import overridden


def shape(name: str) -> ModelArchitecture:
    return ModelArchitecture(name, 10, 8, 8, 1, 1, 1, 8, 1e-5, 1e4, 64, True)


DECODER, ENCODER = shape("Qwen3ForCausalLM"), shape("BertModel")


def write(
    folder: Path, pooling: dict[str, Any] | None, *others: str, config: dict[str, Any] | None = None
) -> Path:
    names = ["Transformer", *(["Pooling"] if pooling is not None else []), *others]
    modules = [
        {"path": name if name == "Pooling" else "", "type": f"sentence_transformers.models.{name}"}
        for name in names
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "config.json").write_text(json.dumps(config or {}))
    if pooling is not None:
        (folder / "Pooling").mkdir()
        (folder / "Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


def test_without_files_an_encoder_gives_its_first_token_and_a_decoder_its_last(tmp_path: Path) -> None:
    assert model_pooling(tmp_path, ENCODER) == PoolingConfig("cls", True)
    assert model_pooling(tmp_path, DECODER) == PoolingConfig("last", True)
    assert longest_text(tmp_path) is None


@pytest.mark.parametrize(
    ("values", "others", "expected"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, [], PoolingConfig("mean", False)),
        ({"pooling_mode_cls_token": True}, ["Normalize"], PoolingConfig("cls", True)),
        ({"pooling_mode_lasttoken": True, "include_prompt": True}, ["Normalize"], PoolingConfig("last", True)),
        ({"pooling_mode": "lasttoken"}, [], PoolingConfig("last", False)),
        ({"pooling_mode": "mean"}, [], PoolingConfig("mean", False)),
    ],
)
def test_the_modules_of_a_model_say_how_it_pools(
    values: dict[str, Any], others: list[str], expected: PoolingConfig, tmp_path: Path
) -> None:
    assert model_pooling(write(tmp_path, values, *others), DECODER) == expected


@pytest.mark.parametrize(
    ("values", "others", "message"),
    [
        ({"pooling_mode_max_tokens": True}, [], "none of the ways known here"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, [], "none of the ways known here"),
        ({"pooling_mode": "weightedmean"}, [], "none of the ways known here"),
        ({"pooling_mode_mean_tokens": True}, ["Dense"], "module Dense is not supported"),
    ],
)
def test_what_would_give_wrong_vectors_is_refused(
    values: dict[str, Any], others: list[str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        model_pooling(write(tmp_path, values, *others), ENCODER)


def test_broken_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text("{")
    with pytest.raises(ConfigError, match=r"modules\.json: not valid JSON"):
        model_pooling(tmp_path, ENCODER)


def test_a_matryoshka_model_says_which_lengths_it_may_be_cut_to(tmp_path: Path) -> None:
    config = {"matryoshka_dimensions": [4, 8]}
    assert model_pooling(write(tmp_path, None, config=config), DECODER) == PoolingConfig(
        "last", True, True, (4, 8)
    )
    (tmp_path / "config.json").write_text('{"is_matryoshka": true}')
    assert model_pooling(tmp_path, DECODER) == PoolingConfig("last", True, True)


def test_the_flag_changes_what_it_names() -> None:
    model = PoolingConfig("cls", True, True, (4,))
    assert overridden(model, {}) == model
    assert overridden(model, {"pooling_type": "MEAN"}) == replace(model, kind="mean")
    assert overridden(model, {"seq_pooling_type": "last", "use_activation": False}) == replace(
        model, kind="last", normalize=False
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"pooling_type": "MAX"}, "pooling_type 'MAX' is not supported; supported: LAST, MEAN, CLS"),
        ({"pooling_type": 3}, "pooling_type 3"),
        ({"normalize": "yes"}, "normalize is 'yes', not true or false"),
        ({"step_tag_id": 3}, "step_tag_id is not supported"),
    ],
)
def test_what_the_flag_cannot_ask_for_is_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        overridden(PoolingConfig(), values)


def test_the_configuration_reaches_other_processes_whole() -> None:
    model = replace(default_model_config(), pooling=PoolingConfig("mean", False, True, (4, 8)))
    wire = json.loads(json.dumps(to_wire(model)))
    assert from_wire(type(model), wire) == model

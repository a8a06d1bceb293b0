"""A GGUF model computed in the blocks of its file answers as the same model in float32, row by row the same."""

from dataclasses import replace
from pathlib import Path

import gguf
import pytest
import torch
from gguf_files import write_gguf
from paged_runner import PagedRunner, load, model_config
from tiny_models import TINY_CONFIG, write_model

from vllm_obs.engine.config import Dtype
from vllm_obs.engine.kernels.cpu.jit import this_machine
from vllm_obs.engine.model.block_weights import BlockEmbedding, BlockWeights
from vllm_obs.engine.model.compiled_decoder import CompiledDecoder
from vllm_obs.engine.model.gguf_weights import GGUFWeights
from vllm_obs.engine.model.loader import load_model
from vllm_obs.engine.model.tensor_names import EMBEDDING
from vllm_obs.engine.model.tensor_part import TensorPart

pytestmark = pytest.mark.skipif(this_machine() is None, reason="this machine has no compiled kernels")
TOKENS = list(range(3, 20))
FORMS = {"Q4_0": ("q4",), "Q4_1": ("q4",), "Q8_0": ("q8",), "F16": ("int16",), "Q5_1": ("int16",)}


def quantised(folder: Path, type_name: str) -> Path:
    return write_gguf(folder / f"{type_name}.gguf", kind=gguf.GGMLQuantizationType[type_name])


def compiled(path: Path, dtype: Dtype, quantization: str = "auto") -> CompiledDecoder:
    config = model_config(path, dtype)
    model = load_model(replace(config, model=replace(config.model, quantization=quantization)))
    assert isinstance(model, CompiledDecoder)
    return model


def logits(model: CompiledDecoder) -> torch.Tensor:
    """Of a prompt's tokens and of one more."""
    runner = PagedRunner(model, 1, 32)
    return torch.cat((runner.step({0: TOKENS}, "all"), runner.step({0: [5]})))


@pytest.mark.parametrize("type_name", FORMS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_logits_are_those_of_the_files_numbers(type_name: str, dtype: Dtype, tmp_path: Path) -> None:
    path = quantised(tmp_path, type_name)
    model = compiled(path, dtype)
    assert model.kernels.forms == FORMS[type_name]
    torch.testing.assert_close(logits(model), logits(compiled(path, "float32")), atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize(
    ("dtype", "quantization", "form"), [("float32", "auto", "float32"), ("bfloat16", "none", "int16")]
)
def test_blocks_are_left_where_numbers_are_asked_for(
    dtype: Dtype, quantization: str, form: str, tmp_path: Path
) -> None:
    assert compiled(quantised(tmp_path, "Q4_1"), dtype, quantization).kernels.forms == (form,)


def test_numbers_of_other_files_are_whole_ones_of_16_bits(tmp_path: Path) -> None:
    wide = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
    assert compiled(write_model(tmp_path, TINY_CONFIG | wide), "bfloat16").kernels.forms == ("int16",)


@pytest.mark.parametrize("type_name", ["Q4_1", "Q8_0"])
def test_a_sequence_gets_the_same_to_the_bit_alone_and_among_others(type_name: str, tmp_path: Path) -> None:
    model = compiled(quantised(tmp_path, type_name), "bfloat16")
    alone, together = PagedRunner(model, 1, 32), PagedRunner(model, 40, 32)
    others = {number: TOKENS[: 1 + number % 9] for number in range(1, 40)}
    assert torch.equal(alone.step({0: TOKENS}), together.step({0: TOKENS} | others)[:1])
    assert torch.equal(alone.step({0: [7]}), together.step({number: [7] for number in range(40)})[:1])


def test_matrices_of_several_types_are_not_put_together(tmp_path: Path) -> None:
    path = quantised(tmp_path, "Q4_1")
    blocks = BlockWeights(GGUFWeights(str(path), model_config(path).model.architecture))
    prefix = "model.layers.0."
    assert blocks.type_name(f"{prefix}mlp.up_proj.weight", f"{prefix}mlp.gate_proj.weight") == "Q4_1"
    assert blocks.type_name(f"{prefix}mlp.up_proj.weight", f"{prefix}input_layernorm.weight") is None
    assert blocks.type_name("model.norm.weight") is None


def test_a_part_has_whole_blocks(tmp_path: Path) -> None:
    path = quantised(tmp_path, "Q4_1")
    weights = GGUFWeights(str(path), model_config(path).model.architecture)
    name = "model.layers.1.mlp.down_proj.weight"
    whole = weights.blocks(name)
    part = weights.blocks(name, TensorPart(range(3, 7), range(32, 96)))
    assert torch.equal(part, whole.view(whole.shape[0], -1, 20)[3:7, 1:3].flatten(1))


def test_an_embedding_in_blocks_has_the_files_numbers(tmp_path: Path) -> None:
    path = quantised(tmp_path, "Q8_0")
    weights = GGUFWeights(str(path), model_config(path).model.architecture)
    tokens = torch.tensor([3, 47, 3, 0])
    assert torch.equal(BlockEmbedding(weights.blocks(EMBEDDING))(tokens), weights.read(EMBEDDING)[tokens])


def test_the_default_model_is_computed_in_its_own_blocks() -> None:
    model = load(None, "bfloat16", max_model_len=128)
    assert isinstance(model, CompiledDecoder)
    assert model.kernels.forms == ("q4", "q8")

"""A part of a tensor, read from any source of weights, is that part of the whole."""

from itertools import chain, product
from pathlib import Path

import gguf
import pytest
import torch
from gguf_files import write_gguf
from paged_runner import model_config
from tiny_models import TINY_CONFIG, write_model

from vllm_obs.engine.model.partition import Partition
from vllm_obs.engine.model.tensor_part import TensorPart, span
from vllm_obs.engine.model.weights import open_weights

PREFIX = "model.layers.1."
NAMES = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.o_proj", "mlp.down_proj", "mlp.up_proj")


def check_parts(path: Path, head_dim: int, load_format: str = "auto") -> None:
    config = model_config(path, load_format=load_format)
    weights = open_weights(config.model)
    for name in NAMES:
        whole = weights.read(f"{PREFIX}{name}.weight")
        num_rows, num_columns = whole.shape
        rows = (None, range(head_dim), range(num_rows - head_dim, num_rows))
        columns = (None, range(num_columns // 2), range(3, num_columns - 5))
        for part in map(TensorPart._make, product(rows, columns)):
            found = weights.read(f"{PREFIX}{name}.weight", part)
            assert torch.equal(found, whole[span(part.rows), span(part.columns)]), (name, part)
            assert found.untyped_storage().nbytes() == found.numel() * found.element_size(), "nothing else is kept"


@pytest.mark.parametrize("type_name", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_of_a_gguf_file(type_name: str, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", kind=gguf.GGMLQuantizationType[type_name])
    check_parts(path, model_config(path).model.architecture.head_dim)


def test_of_safetensors_and_of_random_numbers(tmp_path: Path) -> None:
    write_model(tmp_path, TINY_CONFIG, num_files=2)
    check_parts(tmp_path, 8)
    check_parts(tmp_path, 8, load_format="dummy")


def test_parts_of_a_model_are_all_of_it_and_heads_have_the_keys_they_read(tmp_path: Path) -> None:
    values = TINY_CONFIG | {"num_attention_heads": 8, "num_key_value_heads": 2, "num_hidden_layers": 5}
    shape = model_config(write_model(tmp_path, values)).model.architecture
    shards = [Partition(shard, 4) for shard in range(4)]
    assert [list(shard.heads(shape)) for shard in shards] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert [list(shard.kv_heads(shape)) for shard in shards] == [[0], [0], [1], [1]]
    assert [*chain(*(shard.words(shape) for shard in shards))] == [*range(shape.vocab_size)]
    assert [*chain(*(shard.inner(shape) for shard in shards))] == [*range(shape.intermediate_size)]
    stages = [Partition(stage=stage, num_stages=3) for stage in range(3)]
    assert [list(stage.layers(shape)) for stage in stages] == [[0, 1], [2, 3], [4]]
    assert [(stage.is_first_stage, stage.is_last_stage) for stage in stages] == [
        (True, False),
        (False, False),
        (False, True),
    ]

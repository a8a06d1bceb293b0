"""Random weights: the same for the same seed and name, in the type and on the device they are wanted."""

import subprocess
import sys

import torch
from tiny_models import TINY_CONFIG

from vllm_obs.engine.model.hf_architecture import hf_architecture
from vllm_obs.engine.model.tensor_part import TensorPart
from vllm_obs.engine.model.weights import DummyWeights

ARCHITECTURE = hf_architecture(TINY_CONFIG, "test")
NAME = "model.layers.0.self_attn.q_proj.weight"


def test_a_tensor_is_a_function_of_seed_and_name() -> None:
    first, again, other = (DummyWeights(ARCHITECTURE, seed).read(NAME) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert (first.dtype, first.device.type) == (torch.float32, "cpu")


def test_they_are_drawn_in_the_type_that_is_asked_for() -> None:
    weights = DummyWeights(ARCHITECTURE, 1, "cpu", torch.bfloat16)
    whole = weights.read(NAME)
    assert whole.dtype == torch.bfloat16
    assert torch.equal(weights.read(NAME, TensorPart(range(2, 6), None)), whole[2:6])
    assert 0.5 < whole.float().std() * 32**0.5 < 2.0


def test_they_are_drawn_also_with_a_torch_that_is_loaded_for_serving_only() -> None:
    code = (
        "from vllm_obs.engine.worker.torch_import import import_torch\n"
        "import_torch('cpu')\n"
        "from vllm_obs.engine.model.hf_architecture import hf_architecture\n"
        "from vllm_obs.engine.model.weights import DummyWeights\n"
        f"print(DummyWeights(hf_architecture({TINY_CONFIG!r}, 'test'), 1).read({NAME!r}).shape)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (ended.stdout, ended.stderr) == ("torch.Size([32, 32])\n", "")

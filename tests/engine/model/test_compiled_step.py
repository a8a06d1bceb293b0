"""Steps of few tokens are computed in the same place; what one returned stays as it was."""

from pathlib import Path

import pytest
import torch
from paged_runner import PagedRunner, load
from tiny_models import TINY_CONFIG, random_tensors, write_model

from vllm_obs.engine.kernels.cpu.jit import this_machine
from vllm_obs.engine.model.compiled_decoder import CompiledDecoder

WIDE = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
PROMPT = [5, 17, 3, 60, 2, 9, 33]

pytestmark = pytest.mark.skipif(this_machine() is None, reason="this machine has no compiled kernels")


@pytest.fixture
def model(tmp_path: Path) -> CompiledDecoder:
    config = {**TINY_CONFIG, **WIDE}
    write_model(tmp_path, config, random_tensors(config))
    found = load(tmp_path)
    assert isinstance(found, CompiledDecoder)
    return found


def in_turn(model: CompiledDecoder, caches: int, steps: int) -> list[list[torch.Tensor]]:
    """Logits of decode steps after the prompt, of sequences with a cache each that take turns."""
    runners = [PagedRunner(model, 1, 32, seed) for seed in range(caches)]
    for runner in runners:
        runner.step({0: PROMPT})
    return [[runner.step({0: [token]})[0] for runner in runners] for token in range(1, steps + 1)]


def test_what_a_step_returned_is_not_changed_by_the_next(model: CompiledDecoder) -> None:
    runner = PagedRunner(model, 1, 32)
    runner.step({0: PROMPT})
    first = runner.hidden({0: [1]})
    before = first.clone()
    runner.hidden({0: [2]})
    assert torch.equal(first, before)


def test_steps_with_other_caches_between_get_what_they_get_alone(model: CompiledDecoder) -> None:
    alone = in_turn(model, 1, 4)
    for (expected,), found in zip(alone, in_turn(model, 3, 4), strict=True):
        assert all(torch.equal(expected, logits) for logits in found)


def test_steps_of_changing_size_get_what_they_get_alone(model: CompiledDecoder) -> None:
    alone = in_turn(model, 1, 3)
    runner = PagedRunner(model, 2, 32)
    runner.step({0: PROMPT})
    runner.step({1: PROMPT})
    sizes = [{0: [1]}, {0: [2], 1: [1]}, {0: [3]}]
    found = [runner.step(step)[0] for step in sizes]
    assert all(torch.equal(logits, expected) for logits, (expected,) in zip(found, alone, strict=True))

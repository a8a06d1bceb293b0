"""A model through the real runner with Triton's kernels gives the tokens that torch's operations give."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from paged_runner import PagedRunner, load_torch, model_config
from plan_driver import Driver
from tiny_models import TINY_CONFIG, random_tensors, write_model

from vllm_obs.engine.kernels.triton.configs import configs_for
from vllm_obs.engine.messages import SamplingSpec
from vllm_obs.engine.model.decoder import Decoder
from vllm_obs.engine.model.interface import DecoderModel
from vllm_obs.engine.model.loader import load_model
from vllm_obs.engine.model.triton_decoder import TritonCard, TritonDecoder
from vllm_obs.engine.worker.model_runner import ModelRunner

CARD = TritonCard(configs_for(90), num_processors=1)
SPECS = [
    SamplingSpec(temperature=0.0, logprobs=2),
    SamplingSpec(temperature=1.1, top_p=0.8, top_k=10, seed=2),
    SamplingSpec(temperature=0.0, prompt_logprobs=1, presence_penalty=1.0),
]
PROMPTS = [[3], list(range(1, 12)), [5, 5, 5, 5, 5]]
HEAD_NORMS_AND_A_WINDOW: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "head_dim": 16,
    "sliding_window": 6,
    "use_sliding_window": True,
    "max_window_layers": 1,
}
"""A llama, which has neither, runs in test_whole_engine.py."""


def _model(folder: Path, changes: dict[str, Any]) -> Path:
    values = TINY_CONFIG | {"num_hidden_layers": 2} | changes
    write_model(folder, values, random_tensors(values))
    return folder


def _tokens(path: Path, model: DecoderModel, chunk: int) -> dict[str, list[int]]:
    config = model_config(path)
    config = replace(
        config, model=replace(config.model, max_model_len=64), cache=replace(config.cache, block_size=4)
    )
    runner = ModelRunner(config, model, model.allocate_kv_cache(40, config.cache.block_size))
    driver = Driver(runner, 40, config.cache.block_size)
    for place, (prompt, spec) in enumerate(zip(PROMPTS, SPECS, strict=True)):
        driver.add(str(place), prompt, spec, 2 + place // 2)
    outputs = driver.run_all(chunk)
    assert driver.failed == []
    return outputs


def test_the_runner_gives_the_tokens_of_the_torch_backend(tmp_path: Path) -> None:
    path = _model(tmp_path, HEAD_NORMS_AND_A_WINDOW)
    plain = load_torch(path)
    expected = _tokens(path, plain, chunk=5)
    assert [len(row) for row in expected.values()] == [2, 2, 3]
    assert _tokens(path, TritonDecoder.over(plain, CARD), chunk=5) == expected


def test_logits_of_split_decodes_are_near_those_of_the_torch_backend(tmp_path: Path) -> None:
    plain = load_torch(_model(tmp_path, {"max_position_embeddings": 512, "num_hidden_layers": 1}))
    split = TritonDecoder.over(plain, TritonCard(configs_for(90), num_processors=64))
    plain_runner, split_runner = (PagedRunner(model, 2, 304) for model in (plain, split))
    plain_runner.step({0: [(7 * place) % 90 for place in range(300)]}, "none")
    for source, target in zip(plain_runner.cache.layers, split_runner.cache.layers, strict=True):
        target.copy_(source)
    split_runner.lengths = list(plain_runner.lengths)
    expected, found = (runner.step({0: [7], 1: [8]}) for runner in (plain_runner, split_runner))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_the_loader_takes_the_backend_by_name_and_says_which(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = model_config(_model(tmp_path, {}))
    with caplog.at_level("INFO", logger="vllm_obs.engine.model.loader"):
        kinds = [
            type(load_model(replace(config, model=replace(config.model, attention_backend=name))))
            for name in ("triton", "torch")
        ]
    assert kinds == [TritonDecoder, Decoder]
    assert "Attention backend: triton (asked for)" in caplog.text

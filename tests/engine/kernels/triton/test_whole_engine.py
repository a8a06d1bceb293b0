"""The whole engine in one process, with Triton's kernels, gives the tokens that torch's operations give."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_executor import make_request
from paged_runner import model_config
from tiny_models import TINY_CONFIG, random_tensors, write_model

from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.core import EngineCore
from vllm_obs.engine.messages import FinishReason, SamplingSpec
from vllm_obs.engine.process import make_core
from vllm_obs.engine.sampling.triton_sampler import TritonSampler
from vllm_obs.telemetry.recorder import MemoryRecorder
from vllm_obs.telemetry.records import StepPlanned, WorkerStep

SHARED = list(range(1, 9))
REQUESTS = {
    "greedy": ([3, 4, 5], SamplingSpec(max_tokens=2, temperature=0.0)),
    "long": ([*SHARED, *range(20, 25)], SamplingSpec(max_tokens=2, temperature=0.8, seed=3)),
    "shares-a-prefix": ([*SHARED, 7], SamplingSpec(max_tokens=2, top_p=0.8, top_k=12, seed=4)),
    "penalised": ([9], SamplingSpec(max_tokens=4, temperature=0.0, presence_penalty=1.0, logprobs=2)),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    values = TINY_CONFIG | {"num_hidden_layers": 2}
    return write_model(tmp_path_factory.mktemp("two-layers"), values, random_tensors(values))


def config_of(model: Path, backend: str) -> VllmConfig:
    """A cache of blocks too few for all at once, and steps too short for a prompt beside the decodes."""
    config = model_config(model)
    return replace(
        config,
        model=replace(config.model, attention_backend=backend, max_model_len=64),
        cache=replace(config.cache, block_size=4, num_gpu_blocks_override=6),
        scheduler=replace(config.scheduler, max_num_seqs=4, max_num_batched_tokens=12),
    )


class Run:
    """An engine that served all requests: what each got, and what was recorded."""

    def __init__(self, config: VllmConfig) -> None:
        self.recorder = MemoryRecorder()
        self.tokens: dict[str, list[int]] = {}
        self.endings: dict[str, int] = {}
        self.core = make_core(config, self.recorder, lambda failure: None)
        try:
            self._serve(self.core)
        finally:
            self.core.shutdown()

    def _serve(self, core: EngineCore) -> None:
        for name, (prompt, sampling) in REQUESTS.items():
            core.add_request(make_request(name, prompt, sampling=sampling))
        for _ in range(100):
            if not core.has_work():
                break
            for message in core.step().values():
                self._take(message)

    def _take(self, message: Any) -> None:
        begin = 0
        for name, count, ending in zip(
            message.request_ids, message.num_new_tokens, message.finish_reasons, strict=True
        ):
            self.tokens.setdefault(name, []).extend(message.new_token_ids[begin : begin + count])
            self.endings[name] = ending
            begin += count


def test_the_engine_gives_the_tokens_of_the_torch_backend(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samplers: list[object] = []
    launch = TritonSampler.launch

    def noted(sampler: TritonSampler, *given: Any) -> Any:
        samplers.append(sampler)
        return launch(sampler, *given)

    monkeypatch.setattr(TritonSampler, "launch", noted)
    expected = Run(config_of(model, "torch"))
    assert samplers == []
    found = Run(config_of(model, "triton"))
    assert len(samplers) > 5
    assert found.tokens == expected.tokens
    assert found.endings == dict.fromkeys(REQUESTS, FinishReason.LENGTH)
    assert {name: len(tokens) for name, tokens in found.tokens.items()} == {
        name: sampling.max_tokens for name, (_, sampling) in REQUESTS.items()
    }
    planned = [record for record in found.recorder.of(StepPlanned) if record.request_ids]
    assert any(max(record.num_scheduled_tokens) > 1 < len(record.request_ids) for record in planned), "mixed steps"
    assert any(set(record.num_scheduled_tokens) == {1} for record in planned), "decode steps"
    assert any(record.preempted_ids or record.head_reason == "kv_blocks" for record in planned), "blocks ran out"
    ran = [record for record in found.recorder.of(WorkerStep) if record.step]
    assert {(record.graph_size, record.num_padded_tokens, record.eager_reason) for record in ran} == {
        (0, 0, "no_gpu")
    }

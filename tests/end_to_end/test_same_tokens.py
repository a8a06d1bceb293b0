"""In float32 a request's tokens do not depend on how it is batched, chunked, cached, preempted or reached."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from mixed_requests import Judge, MixedRequest, mixed_requests
from serving import MODEL, serving

from vllm_obs.engine.frontend.llm import LLM
from vllm_obs.telemetry.recorder import MemoryRecorder
from vllm_obs.telemetry.records import StepPlanned

pytestmark = pytest.mark.timeout(900)
REQUESTS = mixed_requests()


def generate(llm: LLM) -> list[list[int]]:
    outputs = llm.generate([r.prompt for r in REQUESTS], [r.params for r in REQUESTS], use_tqdm=False)
    return [output.outputs[0].token_ids for output in outputs]


def offline(**engine_args: Any) -> LLM:
    defaults = {"dtype": "float32", "max_model_len": 2048, "kv_cache_memory_bytes": 1 << 30}
    return LLM(**{**defaults, **engine_args})


@pytest.fixture(scope="module")
def judge() -> Judge:
    return Judge(REQUESTS)


@pytest.fixture(scope="module")
def alone() -> Iterator[list[list[int]]]:
    with offline(max_num_seqs=1, enable_prefix_caching=False) as llm:
        yield generate(llm)


@pytest.mark.parametrize(
    "engine_args",
    [
        pytest.param({"max_num_seqs": 64}, id="all-at-once"),
        pytest.param({"max_num_seqs": 16, "max_num_batched_tokens": 16}, id="chunks-of-16"),
        pytest.param(
            {"max_num_seqs": 64, "max_num_batched_tokens": 4096}, id="budget-4096", marks=pytest.mark.long
        ),
        pytest.param({"distributed_executor_backend": "mp"}, id="worker-process", marks=pytest.mark.long),
    ],
)
def test_the_same_tokens_alone_and(
    engine_args: dict[str, Any], alone: list[list[int]], judge: Judge, request: pytest.FixtureRequest
) -> None:
    with offline(**engine_args) as llm:
        judge.compare(request.node.callspec.id, alone, generate(llm))


@pytest.mark.long
def test_the_same_tokens_from_a_warm_prefix_cache(alone: list[list[int]], judge: Judge) -> None:
    with offline() as llm:
        generate(llm)
        outputs = llm.generate([r.prompt for r in REQUESTS], [r.params for r in REQUESTS], use_tqdm=False)
        assert sum(output.num_cached_tokens for output in outputs) > 3000
        judge.compare("warm", alone, [output.outputs[0].token_ids for output in outputs])


def test_the_same_tokens_through_preemption(
    alone: list[list[int]], judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = MemoryRecorder()
    monkeypatch.setattr("vllm_obs.engine.frontend.llm_engine.make_recorder", lambda *_: recorder)
    with offline(num_gpu_blocks_override=64, max_num_seqs=64, enable_prefix_caching=False) as llm:
        tokens = generate(llm)
        assert sum(len(plan.preempted_ids) for plan in recorder.of(StepPlanned)) > 0
        judge.compare("preempted", alone, tokens)


def test_the_same_tokens_over_http(alone: list[list[int]], judge: Judge) -> None:
    with (
        serving("--dtype", "float32", "--max-model-len", "2048") as server,
        ThreadPoolExecutor(len(REQUESTS)) as pool,
    ):
        replies = list(
            pool.map(lambda request: server.request("POST", "/v1/completions", body(request)), REQUESTS)
        )
    assert {status for status, _ in replies} == {200}
    judge.compare("http", alone, [reply["choices"][0]["token_ids"] for _, reply in replies])


def body(request: MixedRequest) -> dict[str, Any]:
    params = request.params
    return {
        "model": MODEL,
        "prompt": request.prompt,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "seed": params.seed,
        "repetition_penalty": params.repetition_penalty,
        "presence_penalty": params.presence_penalty,
        "max_tokens": params.max_tokens,
        "min_tokens": params.min_tokens,
        "ignore_eos": True,
        "return_token_ids": True,
    }

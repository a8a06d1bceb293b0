"""In float32 a request's tokens do not depend on how it is batched, chunked, cached, preempted or reached."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from device_sampler import DeviceSampler
from fake_device import FakeDevice
from mixed_requests import ANSWER_SECONDS, Judge, MixedRequest, mixed_requests
from serving import serving

from vllm_obs.engine.frontend.llm import LLM
from vllm_obs.engine.worker import model_runner
from vllm_obs.telemetry.recorder import MemoryRecorder
from vllm_obs.telemetry.records import StepPlanned

pytestmark = pytest.mark.timeout(900)
Mix = list[MixedRequest]
NUM_BLOCKS = {12: (78, 76, 77, 79), 64: (118, 139, 138, 117)}
"""By the number of requests: some of them are preempted where there are so many blocks of eight tokens, mostly: a
busy machine may admit them in other steps."""


def generate(llm: LLM, mix: Mix) -> list[list[int]]:
    outputs = llm.generate([r.prompt for r in mix], [r.params for r in mix], use_tqdm=False)
    return [output.outputs[0].token_ids for output in outputs]


def offline(**engine_args: Any) -> LLM:
    defaults = {"dtype": "float32", "max_model_len": 2048, "kv_cache_memory_bytes": 1 << 30}
    return LLM(**{**defaults, **engine_args})


@pytest.fixture(scope="module", params=[12, pytest.param(64, marks=pytest.mark.long)])
def mix(request: pytest.FixtureRequest) -> Mix:
    """So many requests, with prompts of up to 900 tokens, of few up to 450."""
    return mixed_requests(request.param)


@pytest.fixture(scope="module")
def judge(mix: Mix) -> Judge:
    return Judge(mix)


@pytest.fixture(scope="module")
def alone(mix: Mix) -> list[list[int]]:
    with offline(max_num_seqs=1, enable_prefix_caching=False) as llm:
        return generate(llm, mix)


@pytest.mark.parametrize(
    "engine_args",
    [
        pytest.param({"max_num_seqs": 64}, id="all-at-once"),
        pytest.param({"max_num_seqs": 16, "max_num_batched_tokens": 16}, id="chunks-of-16"),
        pytest.param(
            {"max_num_seqs": 64, "max_num_batched_tokens": 4096}, id="budget-4096", marks=pytest.mark.long
        ),
        pytest.param({"distributed_executor_backend": "mp"}, id="worker-process", marks=pytest.mark.long),
        pytest.param({"max_num_seqs": 64, "async_scheduling": True}, id="ahead"),
        pytest.param(
            {"distributed_executor_backend": "mp", "async_scheduling": True},
            id="ahead-of-a-worker-process",
            marks=pytest.mark.long,
        ),
    ],
)
def test_the_same_tokens_alone_and(
    engine_args: dict[str, Any], mix: Mix, alone: list[list[int]], judge: Judge, request: pytest.FixtureRequest
) -> None:
    with offline(**engine_args) as llm:
        judge.compare(request.node.callspec.id, alone, generate(llm, mix))


@pytest.mark.long
def test_the_same_tokens_fed_back_on_a_device_that_the_host_reads_a_step_late(
    mix: Mix, alone: list[list[int]], judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_runner, "make_sampler", lambda *_: DeviceSampler(FakeDevice()))
    with offline(max_num_seqs=64, async_scheduling=True) as llm:
        judge.compare("on a device", alone, generate(llm, mix))


@pytest.mark.long
def test_the_same_tokens_from_a_warm_prefix_cache(mix: Mix, alone: list[list[int]], judge: Judge) -> None:
    with offline() as llm:
        generate(llm, mix)
        outputs = llm.generate([r.prompt for r in mix], [r.params for r in mix], use_tqdm=False)
        num_tokens = sum(len(r.prompt) for r in mix)
        assert sum(output.num_cached_tokens for output in outputs) > 0.35 * num_tokens
        judge.compare("warm", alone, [output.outputs[0].token_ids for output in outputs])


def test_the_same_tokens_through_preemption(
    mix: Mix, alone: list[list[int]], judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longest come first and short ones fill up what they leave, so that there is no block to grow into."""
    order = sorted(range(len(mix)), key=lambda i: -len(mix[i].prompt))
    for num_blocks in NUM_BLOCKS[len(mix)]:
        recorder = MemoryRecorder()
        make = lambda *_, recorder=recorder: recorder  # noqa: E731
        monkeypatch.setattr("vllm_obs.engine.frontend.llm_engine.make_recorder", make)
        small = {"num_gpu_blocks_override": num_blocks, "block_size": 8}
        with offline(**small, max_num_seqs=64, enable_prefix_caching=False) as llm:
            tokens = dict(zip(order, generate(llm, [mix[i] for i in order]), strict=True))
            judge.compare("preempted", alone, [tokens[i] for i in range(len(mix))])
        if sum(len(plan.preempted_ids) for plan in recorder.of(StepPlanned)) > 0:
            return
    raise AssertionError("nobody was ever preempted")


@pytest.mark.long
@pytest.mark.parametrize("flags", [(), ("--api-server-count", "2")], ids=["one", "two servers"])
def test_the_same_tokens_over_http(mix: Mix, alone: list[list[int]], judge: Judge, flags: tuple[str, ...]) -> None:
    """test_data_parallel.py tells the same of fewer, over HTTP from two engines."""

    def ask(request: MixedRequest) -> tuple[int, Any]:
        return server.request("POST", "/v1/completions", request.body, ANSWER_SECONDS)

    with (
        serving("--dtype", "float32", "--max-model-len", "2048", *flags) as server,
        ThreadPoolExecutor(len(mix)) as pool,
    ):
        replies = list(pool.map(ask, mix))
    assert {status for status, _ in replies} == {200}
    judge.compare("http", alone, [reply["choices"][0]["token_ids"] for _, reply in replies])

"""In float32 a model that ranks share, by shards, by stages or by both, gives the tokens of one process."""

from typing import Any

import pytest
from mixed_requests import Judge, MixedRequest, mixed_requests
from random_model import random_model

from vllm_obs.engine.frontend.llm import LLM

pytestmark = pytest.mark.timeout(900)
Mix = list[MixedRequest]


def generate(mix: Mix, **engine_args: Any) -> list[list[int]]:
    defaults = {"dtype": "float32", "max_model_len": 2048, "kv_cache_memory_bytes": 1 << 28, "max_num_seqs": 64}
    with LLM(**{**defaults, **engine_args}) as llm:
        outputs = llm.generate([r.prompt for r in mix], [r.params for r in mix], use_tqdm=False)
    return [output.outputs[0].token_ids for output in outputs]


@pytest.fixture(scope="module", params=[12, pytest.param(64, marks=pytest.mark.long)])
def mix(request: pytest.FixtureRequest) -> Mix:
    """So many mixed requests."""
    return mixed_requests(request.param)


@pytest.fixture(scope="module")
def judge(mix: Mix) -> Judge:
    return Judge(mix)


@pytest.fixture(scope="module")
def whole(mix: Mix) -> list[list[int]]:
    """What the default model says in one process."""
    return generate(mix)


@pytest.mark.parametrize(
    ("num_shards", "num_stages"),
    [
        pytest.param(3, 1, id="three-shards", marks=pytest.mark.long),
        pytest.param(1, 2, id="two-stages"),
        pytest.param(3, 2, id="three-shards-by-two-stages", marks=pytest.mark.long),
    ],
)
def test_the_default_model(
    num_shards: int, num_stages: int, mix: Mix, whole: list[list[int]], judge: Judge
) -> None:
    shared = generate(mix, tensor_parallel_size=num_shards, pipeline_parallel_size=num_stages)
    judge.compare(f"{num_shards} shards, {num_stages} stages", whole, shared)


@pytest.fixture(scope="module")
def asked_random(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """How a model of random weights is asked for."""
    return random_model(tmp_path_factory.mktemp("random-model"))


@pytest.fixture(scope="module")
def whole_random(mix: Mix, asked_random: dict[str, Any]) -> list[list[int]]:
    return generate(mix, **asked_random)


@pytest.mark.parametrize("num_shards", [pytest.param(2, marks=pytest.mark.long), 4])
def test_a_model_with_fewer_key_heads_than_shards(
    num_shards: int, mix: Mix, asked_random: dict[str, Any], whole_random: list[list[int]]
) -> None:
    shared = generate(mix, tensor_parallel_size=num_shards, **asked_random)
    Judge(mix, **asked_random).compare(f"{num_shards} shards of a random model", whole_random, shared)

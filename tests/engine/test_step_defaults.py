"""What steps are like where nothing was asked for."""

import pytest

from vllm_obs.engine.config import ParallelConfig
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.step_defaults import AskedSteps, is_async, mixed_prefill_tokens, step_limits


@pytest.mark.parametrize(
    ("kwargs", "device", "limits"),
    [
        ({}, "cuda", (256, 2048)),
        ({}, "cpu", (64, 256)),
        ({"max_num_batched_tokens": 16}, "cpu", (16, 16)),
        ({"max_num_seqs": 1000}, "cpu", (1000, 1000)),
        ({"enable_chunked_prefill": False}, "cpu", (64, 1000)),
        ({"enable_chunked_prefill": False, "max_num_batched_tokens": 1000}, "cuda", (256, 1000)),
    ],
)
def test_step_limits_fit_each_other(kwargs: dict[str, object], device: str, limits: tuple[int, int]) -> None:
    assert step_limits(AskedSteps(**kwargs), device, 1000) == limits


def test_who_asks_for_tokens_of_prompts_among_decodes_gets_as_many() -> None:
    assert [mixed_prefill_tokens(asked, "cpu") for asked in (None, 64)] == [(24, 1.5), (64, 0)]
    assert [mixed_prefill_tokens(asked, "cuda") for asked in (None, 64)] == [(None, 0), (64, 0)]


def test_steps_are_planned_ahead_where_asked_or_where_one_rank_has_a_gpu() -> None:
    one, two = ParallelConfig(), ParallelConfig("mp", 2, 2)
    assert [is_async(asked, "cuda", one) for asked in (None, True, False)] == [True, True, False]
    assert [is_async(asked, "cuda", two) for asked in (None, False)] == [False, False]
    with pytest.raises(ConfigError, match="--async-scheduling is for one rank, not 2"):
        is_async(True, "cuda", two)

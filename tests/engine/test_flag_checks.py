"""Values of flags that are refused, whatever the model, with the number and the limit."""

import pytest

from vllm_obs.engine.args import EngineArgs
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.flag_checks import check_flags


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"max_model_len": 0}, "--max-model-len 0 is not between 1 and"),
        ({"block_size": 257}, "--block-size 257 is not between 1 and 256"),
        ({"block_size": 0}, "--block-size 0"),
        ({"gpu_memory_utilization": 1.5}, "--gpu-memory-utilization 1.5"),
        ({"gpu_memory_utilization": float("nan")}, "--gpu-memory-utilization nan"),
        ({"kv_cache_memory_bytes": 0}, "--kv-cache-memory-bytes 0"),
        ({"num_gpu_blocks_override": -5}, "--num-gpu-blocks-override -5"),
        ({"max_num_seqs": 0}, "--max-num-seqs 0"),
        ({"max_logprobs": -2}, "--max-logprobs -2"),
        ({"seed": -1}, "--seed -1"),
        ({"dtype": "fp8"}, "--dtype fp8 is not one of auto, bfloat16"),
        ({"scheduling_policy": "lifo"}, "--scheduling-policy lifo is not one of fcfs, priority"),
        ({"distributed_executor_backend": "x"}, "--distributed-executor-backend x is not one of uni, mp, ray"),
        ({"node_timeout": 0.5}, "--node-timeout 0.5 is not between 1 and 86400 seconds"),
    ],
)
def test_bad_values_are_refused(kwargs: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_flags(vars(EngineArgs(**kwargs)))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_left_to_be_worked_out_is_allowed() -> None:
    check_flags(vars(EngineArgs()))

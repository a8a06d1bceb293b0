"""What --model-loader-extra-config may say of a synthetic engine."""

from collections.abc import Mapping
from typing import Any

from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.synthetic.step_time import StepTimeModel

MAX_RANKS = 8


def read_settings(values: Mapping[str, Any], backend: str) -> tuple[dict[str, Any], int]:
    """The fields of StepTimeModel among the values, and `num_ranks` (1 unless given). ConfigError, in one line."""
    step_time = {name: value for name, value in values.items() if name != "num_ranks"}
    try:
        StepTimeModel.from_values(step_time)
    except ConfigError as error:
        raise ConfigError(f"--model-loader-extra-config: {error}") from None
    num_ranks = values.get("num_ranks", 1)
    if type(num_ranks) is not int or not 1 <= num_ranks <= MAX_RANKS:
        raise ConfigError(f"--model-loader-extra-config: num_ranks is {num_ranks!r:.64}; 1 to {MAX_RANKS} may be")
    if num_ranks > 1 and backend not in ("mp", "ray"):
        raise ConfigError(f"num_ranks is {num_ranks}, which needs --distributed-executor-backend mp or ray")
    return step_time, num_ranks

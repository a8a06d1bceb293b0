"""StepTimeModel: a step's time is a sum, and only sensible numbers make one."""

from typing import Any

import pytest

from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.synthetic.settings import read_settings
from vllm_obs.engine.synthetic.step_time import StepTimeModel


def test_a_step_costs_what_its_parts_cost() -> None:
    model = StepTimeModel(0.01, 0.001, 0.0001, 0.00001)
    assert model.seconds(num_tokens=5, num_rows=3, num_context_tokens=200) == pytest.approx(0.0173)
    assert model.seconds(0, 0, 0) == 0.01


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"base_seconds": -1}, "base_seconds is -1; 0 to 3600 may be"),
        ({"base_seconds": float("nan")}, "base_seconds is nan; 0 to 3600 may be"),
        ({"base_seconds": 4000}, "base_seconds is 4000; 0 to 3600 may be"),
        ({"base_seconds": "1"}, "base_seconds is '1', not a number"),
        ({"base_seconds": True}, "base_seconds is True, not a number"),
        ({"num_layers": 0}, "num_layers is 0; 1 to 1024 may be"),
        ({"num_layers": 1.5}, "num_layers is 1.5, not a whole number"),
        ({"speed": 1}, "speed is none of base_seconds, num_layers, seconds_per_context_token, "),
        ({"num_ranks": 9}, "num_ranks is 9; 1 to 8 may be"),
        ({"num_ranks": "two"}, "num_ranks is 'two'; 1 to 8 may be"),
    ],
)
def test_what_is_no_setting_is_refused_with_the_limit(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match="--model-loader-extra-config: ") as refusal:
        read_settings(values, "mp")
    assert said in str(refusal.value)


def test_several_ranks_are_processes() -> None:
    assert read_settings({"num_ranks": 2, "base_seconds": 0.5}, "mp") == ({"base_seconds": 0.5}, 2)
    assert read_settings({}, "uni") == ({}, 1)
    with pytest.raises(ConfigError, match="num_ranks is 2, which needs --distributed-executor-backend mp"):
        read_settings({"num_ranks": 2}, "uni")

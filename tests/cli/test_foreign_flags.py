"""Flags we do not have: one line that helps."""

import json

import pytest

from vllm_obs.cli.foreign_flags import VLLM_FLAGS
from vllm_obs.cli.serve import build_parser, read_settings
from vllm_obs.engine.errors import ConfigError


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max-model-length", "1"], "there is no flag --max-model-length (nearest: --max-model-len)"),
        (["--qqqqqqqq"], "there is no flag --qqqqqqqq; see --help"),
        (
            ["m", "--decode-context-parallel-size=2"],
            "--decode-context-parallel-size is a flag of vLLM that vllm-obs does not have; ",
        ),
        (["-ep"], "-ep is a flag of vLLM that vllm-obs does not have; "),
        (["-dpl", "2"], "-dpl is a flag of vLLM that vllm-obs does not have; what comes nearest: --data-par"),
        (["--no-enable-batch-sharded-sampling"], "--no-enable-batch-sharded-sampling is a flag of vLLM"),
        (["--no-port"], "there is no flag --no-port"),
        (["--max-model"], "there is no flag --max-model"),
        (["a", "b"], "unexpected argument b"),
        (["--port"], "--port needs a value"),
        (["--port", "-x"], "there is no flag -x"),
    ],
)
def test_the_line(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_settings(words)
    assert str(caught.value).startswith(message)


def test_vllms_short_names_are_taken_for_the_flags_that_are_here() -> None:
    assert read_settings(["-tp", "3", "-dp", "2"]) == {"tensor_parallel_size": 3, "data_parallel_size": 2}
    assert read_settings(["-n", "2", "-r", "1", "-dpn", "0", "-asc", "3"]) == {
        "nnodes": 2,
        "node_rank": 1,
        "data_parallel_rank": 0,
        "api_server_count": 3,
    }


def test_negative_numbers_are_values() -> None:
    assert read_settings(["--max-logprobs", "-1"]) == {"max_logprobs": -1}


def test_every_flag_of_vllm_is_had_or_refused_by_name() -> None:
    options = build_parser().options
    for flag in json.loads(VLLM_FLAGS.read_text())["nearest"]:
        if flag in options:
            continue
        with pytest.raises(ConfigError, match="is a flag of vLLM that vllm-obs does not have"):
            read_settings([flag])


def test_every_short_flag_of_vllm_names_a_long_one() -> None:
    known = json.loads(VLLM_FLAGS.read_text())
    assert set(known["short"].values()) <= set(known["nearest"])

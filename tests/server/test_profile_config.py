"""What --profiler-config and vLLM's variables open and set."""

from pathlib import Path

import pytest

from vllm_obs.cli.server_flags import SERVER_FLAGS, server_config_from
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.profile_order import MAX_STEPS
from vllm_obs.server.profile_config import DEFAULT_STEPS, ProfilerConfig, read_profiler_config


def read(text: str) -> ProfilerConfig:
    """As the flag reads it."""
    (flag,) = [flag for flag in SERVER_FLAGS if flag.name == "profiler_config"]
    config = flag.read(text)
    assert isinstance(config, ProfilerConfig)
    return config


def test_vllms_fields_are_taken(tmp_path: Path) -> None:
    text = f"""{{"profiler": "torch", "torch_profiler_dir": "{tmp_path}", "torch_profiler_record_shapes": true,
        "torch_profiler_with_memory": true, "torch_profiler_with_stack": false, "torch_profiler_with_flops": true,
        "torch_profiler_use_gzip": false, "torch_profiler_dump_cuda_time_total": false, "ignore_frontend": true,
        "delay_iterations": 3, "max_iterations": 50}}"""
    options = ("flops", "shapes", "memory", "uncompressed")
    assert read(text) == ProfilerConfig(True, str(tmp_path), 3, 50, options)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", ProfilerConfig()),
        ('{"profiler": null}', ProfilerConfig()),
        ('{"profiler": "torch"}', ProfilerConfig(True)),
        ('{"torch_profiler_dir": "/nowhere/yet"}', ProfilerConfig(True, "/nowhere/yet")),
        ('{"profiler": "torch", "max_iterations": 0}', ProfilerConfig(True, max_steps=DEFAULT_STEPS)),
        ('{"profiler": "torch", "max_iterations": 999999}', ProfilerConfig(True, max_steps=MAX_STEPS)),
        (
            '{"profiler": "torch", "wait_iterations": 2, "warmup_iterations": 1, "delay_iterations": 4}',
            ProfilerConfig(True, delay_steps=7, max_steps=5),
        ),
    ],
)
def test_bounds_and_openness(text: str, expected: ProfilerConfig) -> None:
    assert read(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "must be a JSON object"),
        ("[]", "must be a JSON object"),
        ('{"profilers": 1}', "there is no field 'profilers'; known: profiler,"),
        ('{"profiler": "cuda"}', 'profiler must be "torch"'),
        ('{"torch_profiler_dir": 3}', "torch_profiler_dir must be a string"),
        ('{"torch_profiler_dir": "gs://bucket/x"}', "is no directory of this machine"),
        ('{"torch_profiler_dir": "/dev/null"}', "is not a directory"),
        ('{"torch_profiler_with_stack": "yes"}', "torch_profiler_with_stack must be true or false"),
        ('{"delay_iterations": -1}', "delay_iterations must be a whole number from 0"),
        ('{"max_iterations": true}', "max_iterations must be a whole number"),
        ("[" * 100_000, "it has 100000 characters; at most 16384"),
        ("[" * 16_000, "must be a JSON object"),
    ],
)
def test_what_it_is_not_is_said_plainly(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_profiler_config(text)


def test_the_environment_opens_it_where_no_flag_does(tmp_path: Path) -> None:
    environ = {"VLLM_TORCH_PROFILER_DIR": str(tmp_path), "VLLM_TORCH_PROFILER_RECORD_SHAPES": "1"}
    by_environment = ProfilerConfig(True, str(tmp_path), options=("shapes",))
    assert server_config_from({}, environ).profiler_config == by_environment
    by_flag = {"profiler_config": ProfilerConfig(True)}
    assert server_config_from(by_flag, environ).profiler_config == ProfilerConfig(True)
    assert server_config_from({}, {}).profiler_config == ProfilerConfig()
    with pytest.raises(ConfigError, match="VLLM_TORCH_PROFILER_DIR: 's3://x' is no directory"):
        server_config_from({}, {"VLLM_TORCH_PROFILER_DIR": "s3://x"})

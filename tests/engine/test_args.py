"""EngineArgs: what is worked out, and what is refused with the number and the limit."""

import json
from pathlib import Path

import pytest

from vllm_obs.engine.args import EngineArgs
from vllm_obs.engine.config import GraphConfig, from_wire, to_wire
from vllm_obs.engine.config import VllmConfig as Config
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.flags import ENGINE_FLAGS
from vllm_obs.engine.model import source as source_module


@pytest.fixture
def model(tmp_path: Path) -> str:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 1000,
        "tie_word_embeddings": True,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    return str(tmp_path)


def make(model: str, **kwargs: object) -> Config:
    return EngineArgs(model=model, load_format="dummy", device="cpu", **kwargs).create_engine_config()


def test_defaults_on_a_cpu(model: str) -> None:
    config = make(model)
    assert config.model.max_model_len == 1000
    assert config.model.dtype == "bfloat16"
    assert config.model.device == "cpu"
    assert config.model.served_model_names == (model,)
    assert config.model.tokenizer == config.model.path
    assert (config.scheduler.max_num_seqs, config.scheduler.max_num_batched_tokens) == (64, 256)
    assert config.cache.block_size == 16
    assert config.parallel.distributed_executor_backend == "uni"


def test_steps_are_planned_ahead_where_asked(model: str) -> None:
    assert not make(model).scheduler.async_scheduling
    assert make(model, async_scheduling=True).scheduler.async_scheduling


def test_every_flag_sets_a_field_with_its_name() -> None:
    names = {flag.name for flag in ENGINE_FLAGS}
    assert names | {"model"} == set(EngineArgs.__dataclass_fields__)


def test_the_configuration_survives_the_wire(model: str) -> None:
    config = make(model, served_model_name=["a", "b", "a"], chat_template="{{ messages }}")
    assert config.model.served_model_names == ("a", "b")
    assert config.model.chat_template == "{{ messages }}"
    assert from_wire(Config, to_wire(config)) == config


def test_a_tokenizer_is_found_here_or_on_the_hub(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "snapshot"
    folder.mkdir()
    (folder / "tokenizer.json").write_text("{}")
    asked: list[tuple[str, bool]] = []

    def download(name: str, needs_weights: bool) -> Path:
        asked.append((name, needs_weights))
        if name == "some/missing":
            raise ConfigError("no such model: some/missing is not there")
        return folder

    monkeypatch.setattr(source_module, "download_model", download)
    assert make(model, tokenizer=str(folder)).model.tokenizer == str(folder)
    assert asked == []
    assert make(model, tokenizer="some/tokenizer").model.tokenizer == str(folder)
    with pytest.raises(ConfigError, match=r"^--tokenizer: some/missing is not there$"):
        make(model, tokenizer="some/missing")
    assert asked == [("some/tokenizer", False), ("some/missing", False)]


def test_a_template_is_read_from_its_file(model: str, tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").write_text("hello")
    assert make(model, chat_template=str(tmp_path / "chat.jinja")).model.chat_template == "hello"


def test_sizes_of_graphs_are_kept_in_order_and_once(model: str) -> None:
    assert make(model).graphs == GraphConfig()
    asked = make(
        model, enforce_eager=True, cudagraph_capture_sizes=[8, 1, 4, 8, 900], max_cudagraph_capture_size=16
    )
    assert asked.graphs == GraphConfig(True, (1, 4, 8, 900), 16)
    assert from_wire(Config, to_wire(asked)).graphs == asked.graphs


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        (
            {"cudagraph_capture_sizes": [128, 256], "max_num_seqs": 64},
            "--cudagraph-capture-sizes 128 256: none is between 1 and 64",
        ),
        (
            {"cudagraph_capture_sizes": [8], "max_cudagraph_capture_size": 4},
            "--cudagraph-capture-sizes 8: none is between 1 and 4",
        ),
        ({"cudagraph_capture_sizes": [0, 8]}, "--cudagraph-capture-sizes 0 is not at least 1"),
        ({"cudagraph_capture_sizes": []}, "--cudagraph-capture-sizes : none is between 1 and 64"),
        ({"max_cudagraph_capture_size": 0}, "--max-cudagraph-capture-size 0 is not between 1 and 65536"),
    ],
)
def test_sizes_of_graphs_that_no_step_has_are_refused(model: str, kwargs: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make(model, **kwargs)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"max_model_len": 1001}, "--max-model-len 1001 is more than the model's 1000 positions"),
        ({"block_size": 257}, "--block-size 257 is not between 1 and 256"),
        ({"max_num_seqs": 100, "max_num_batched_tokens": 99}, "99 is less than --max-num-seqs 100"),
        (
            {"enable_chunked_prefill": False, "max_num_batched_tokens": 999},
            "999 is less than the longest prompt, 1000",
        ),
        ({"served_model_name": ""}, None),
        ({"served_model_name": ["a" * 257]}, "has 257 characters; between 1 and 256"),
        ({"tokenizer": "/no/such/file"}, "--tokenizer: there is no file or directory /no/such/file"),
        ({"tokenizer": "/no/such/file.gguf"}, "--tokenizer: there is no file or directory /no/such/file.gguf"),
        ({"tokenizer": "/proc"}, "--tokenizer: there is no tokenizer.json in /proc"),
        ({"chat_template": "/no/such/file"}, "--chat-template /no/such/file: No such file"),
    ],
)
def test_bad_values_are_refused(model: str, kwargs: dict[str, object], message: str | None) -> None:
    if message is None:
        assert make(model, **kwargs).model.served_model_names == (model,)
        return
    with pytest.raises(ConfigError) as caught:
        make(model, **kwargs)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_one_of_several_engines_knows_which_it_is(model: str) -> None:
    assert make(model, data_parallel_size=3).engine_index == 0
    asked = {"data_parallel_size": 3, "data_parallel_rank": 2, "data_parallel_balancer": "power-of-two"}
    config = make(model, **asked)
    assert (config.engine_index, config.parallel.data_parallel_balancer) == (2, "power_of_two")
    with pytest.raises(ConfigError, match="--data-parallel-rank 3 is not below --data-parallel-size 3"):
        make(model, data_parallel_size=3, data_parallel_rank=3)
    with pytest.raises(ConfigError, match="--data-parallel-balancer best is not one of least-loaded"):
        make(model, data_parallel_balancer="best")

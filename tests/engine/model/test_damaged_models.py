"""Files of a model damaged in seeded ways: whatever is in them, a ConfigError of one line or a model comes out."""

import json
import random
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from broken_frames import broken
from default_model import default_model_config
from gguf_files import write_gguf
from tiny_models import TINY_CONFIG, write_model

from vllm_obs.engine.args import EngineArgs
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.frontend.tokenizer import load_tokenizer
from vllm_obs.engine.model import source
from vllm_obs.engine.model.architecture import MAX_SIZE

NUM_SEEDS = 250

STRANGE: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 7, 10**30, 2**63, 0.5, -0.0, float("nan"), float("inf"), -float("inf"),
    "", "x" * 500, "\ud800", "NaN", "32", "../../etc/passwd", [], [[]], [1, 2], ["a"], [None], {}, {"a": {}},
    {"rope_type": "yarn"}, {"rope_type": []}, {"rope_type": "linear", "factor": float("inf")},
    {"rope_type": "linear", "factor": 10**400},
)  # fmt: skip
"""What stands for one value of a JSON file."""

Damage = Callable[[Path, random.Random], None]


def refusal(path: Path) -> str:
    """The line with which the model is refused; empty where it is not."""
    try:
        EngineArgs(str(path)).create_engine_config()
    except ConfigError as error:
        line = str(error)
    else:
        return ""
    assert "\n" not in line
    assert len(line) < 2000
    return line


def strange_json(file: Path, draw: random.Random) -> None:
    """One to three values are others, or gone, or there are more."""
    values = json.loads(file.read_text())
    for _ in range(draw.randint(1, 3)):
        key = draw.choice(
            [*values, "rope_scaling", "sliding_window", "layer_types", "head_dim", "max_window_layers"]
        )
        if draw.random() < 0.1:
            values.pop(key, None)
        else:
            values[key] = draw.choice(STRANGE)
    file.write_text(json.dumps(values))


def broken_bytes(file: Path, draw: random.Random) -> None:
    """Bytes are changed, cut, put in."""
    (content,) = broken([file.read_bytes()], draw)[:1] or [b""]
    file.write_bytes(content)


def strange_header(file: Path, draw: random.Random) -> None:
    """The header of a safetensors file says something else of one or two tensors."""
    whole = file.read_bytes()
    length = struct.unpack("<Q", whole[:8])[0]
    header = json.loads(whole[8 : 8 + length])
    for _ in range(draw.randint(1, 2)):
        entry = header[draw.choice(list(header))]
        if isinstance(entry, dict) and entry:
            entry[draw.choice(list(entry))] = draw.choice(
                [*STRANGE, [0, float("inf")], ["0", "4"], [4, 0], [-4, 0]]
            )
        else:
            header[draw.choice(list(header))] = draw.choice(STRANGE)
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + whole[8 + length :])


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("config.json", strange_json),
        ("config.json", broken_bytes),
        ("generation_config.json", strange_json),
        ("tokenizer_config.json", strange_json),
        ("tokenizer_config.json", broken_bytes),
        ("sentence_bert_config.json", strange_json),
        ("modules.json", broken_bytes),
        ("chat_template.jinja", broken_bytes),
        ("model.safetensors", strange_header),
        ("model.safetensors", broken_bytes),
    ],
)
def test_a_damaged_file_of_a_directory_is_a_line_or_a_model(name: str, damage: Damage, tmp_path: Path) -> None:
    whole = {
        "generation_config.json": {"eos_token_id": [2, 7]},
        "tokenizer_config.json": {"chat_template": [{"name": "default", "template": "{{ x }}"}]},
        "sentence_bert_config.json": {"max_seq_length": 100},
    }
    write_model(tmp_path, TINY_CONFIG)
    for other, values in whole.items():
        (tmp_path / other).write_text(json.dumps(values))
    (tmp_path / "chat_template.jinja").write_text("{{ messages }} é")
    modules = [{"type": "sentence_transformers.models.Transformer"}, {"type": "x.Pooling", "path": "1_Pooling"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules[:1]))
    content = (tmp_path / name).read_bytes()
    assert refusal(tmp_path) == ""
    num_refused = 0
    for seed in range(NUM_SEEDS):
        (tmp_path / name).write_bytes(content)
        damage(tmp_path / name, random.Random(f"{name} {seed}"))
        num_refused += bool(refusal(tmp_path))
    if name in ("config.json", "model.safetensors"):
        assert num_refused > NUM_SEEDS / 4


def test_a_damaged_gguf_file_is_a_line_or_a_model(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "whole.gguf").read_bytes()
    damaged = tmp_path / "damaged.gguf"
    draw = random.Random(5)
    for _ in range(NUM_SEEDS):
        copy = bytearray(whole)
        for _ in range(draw.randint(1, 6)):
            copy[draw.randrange(3000)] = draw.choice([0, 1, 8, 0x7F, 0xFF, draw.randrange(256)])
        damaged.write_bytes(copy)
        refusal(damaged)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"])
@pytest.mark.parametrize("damage", [strange_json, broken_bytes])
def test_a_damaged_tokenizer_is_a_line_or_a_tokenizer(name: str, damage: Damage, tmp_path: Path) -> None:
    synthetic = Path(source._SYNTHETIC_PATH)
    for file in synthetic.iterdir():
        if file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "special_tokens_map.json").write_text(
        json.dumps({"bos_token": {"content": "a"}, "eos_token": "b"})
    )
    if not (tmp_path / "tokenizer_config.json").exists():
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ x }}"}))
    content = (tmp_path / name).read_bytes()
    config = replace(default_model_config(), tokenizer=str(tmp_path))
    load_tokenizer(config)
    for seed in range(40 if len(content) > 100_000 else 120):
        (tmp_path / name).write_bytes(content)
        damage(tmp_path / name, random.Random(f"{name} {seed}"))
        try:
            load_tokenizer(config)
        except ConfigError as error:
            assert "\n" not in str(error)  # noqa: PT017 - damage that does no harm is fine too


@pytest.mark.parametrize(
    "key", ["vocab_size", "max_position_embeddings", "num_hidden_layers", "intermediate_size"]
)
def test_a_size_beyond_all_measure_is_named(key: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY_CONFIG | {key: MAX_SIZE + 1}))
    with pytest.raises(ConfigError, match=f"is {MAX_SIZE + 1}; at most {MAX_SIZE} may be"):
        source.resolve_model(str(tmp_path), "dummy")


def test_another_models_tokenizer_is_named(tmp_path: Path) -> None:
    config = default_model_config()
    small = replace(config, architecture=replace(config.architecture, vocab_size=49_000))
    with pytest.raises(ConfigError, match=r"another model's tokenizer: it has 49152 tokens, the model 49000"):
        load_tokenizer(small)

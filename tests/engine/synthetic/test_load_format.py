"""--load-format synthetic: a model of our own or anybody's shape, no weights, no torch."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_models import TINY_CONFIG, write_model

from vllm_obs.engine.args import EngineArgs
from vllm_obs.engine.config import VllmConfig, from_wire, to_wire
from vllm_obs.engine.errors import ConfigError
from vllm_obs.engine.frontend.chat_template import load_chat_template
from vllm_obs.engine.frontend.tokenizer import Tokenizer, load_tokenizer
from vllm_obs.engine.messages import SamplingSpec
from vllm_obs.engine.model.source import resolve_model
from vllm_obs.engine.synthetic.filler import Filler


@pytest.fixture(scope="module")
def config() -> VllmConfig:
    return EngineArgs(load_format="synthetic", max_model_len=4096).create_engine_config()


@pytest.fixture(scope="module")
def tokenizer(config: VllmConfig) -> Tokenizer:
    return load_tokenizer(config.model)


def test_without_a_model_the_built_in_one_is_taken(config: VllmConfig) -> None:
    model = config.model
    assert (model.model, model.served_model_names, model.source) == ("synthetic", ("synthetic",), "synthetic")
    assert model.device == "cpu"
    assert model.is_synthetic
    assert from_wire(VllmConfig, to_wire(config)) == config


def test_a_model_that_is_given_lends_its_shape_and_needs_no_weights(tmp_path: Path) -> None:
    write_model(tmp_path, TINY_CONFIG)
    for weights in tmp_path.glob("*.safetensors"):
        weights.unlink()
    source = resolve_model(str(tmp_path), "synthetic")
    assert (source.source, source.path) == ("synthetic", str(tmp_path))
    assert source.architecture.vocab_size == TINY_CONFIG["vocab_size"]


def test_step_times_and_ranks_come_with_the_format() -> None:
    extra = {"base_seconds": 0.5, "num_ranks": 2}
    args = EngineArgs(
        load_format="synthetic", model_loader_extra_config=extra, distributed_executor_backend="mp"
    ).create_engine_config()
    assert args.model.synthetic_step_time == {"base_seconds": 0.5}
    assert args.parallel.world_size == 2
    with pytest.raises(ConfigError, match="goes with --load-format synthetic only"):
        EngineArgs(load_format="dummy", model_loader_extra_config=extra).create_engine_config()


def test_every_text_is_its_bytes(tokenizer: Tokenizer) -> None:
    text = "Grüße, 世界!\n\x00 two  spaces"
    token_ids = tokenizer.encode(text)
    assert token_ids == list(text.encode())
    assert tokenizer.decode(token_ids) == text


def test_what_is_said_are_words(config: VllmConfig, tokenizer: Tokenizer) -> None:
    filler = Filler(config.model.architecture)
    token_ids = [filler.token(SamplingSpec(seed=3), position) for position in range(500)]
    words = tokenizer.decode(token_ids).split(" ")
    assert len(words) == 501
    assert all(word.rstrip(",.").isalpha() for word in words[1:])
    assert not any(map(tokenizer.is_special, token_ids))


def test_chats_have_a_template(config: VllmConfig, tokenizer: Tokenizer) -> None:
    template = load_chat_template(config.model, tokenizer)
    encoded = template.encode([{"role": "user", "content": "hi<|end|>"}], add_generation_prompt=True)
    user, end, assistant = 514, 513, 515
    assert encoded == [user, *b"hi<|end|>", end, assistant]


def test_filler_keeps_clear_of_the_ends_of_other_vocabularies() -> None:
    architecture = resolve_model(None, "synthetic").architecture
    filler = Filler(replace(architecture, vocab_size=1000, eos_token_ids=(600,), bos_token_id=601))
    said = {filler.token(SamplingSpec(), position) for position in range(5000)}
    assert said == set(range(500, 875)) - {600, 601}
    assert Filler(replace(architecture, vocab_size=1, eos_token_ids=(0,))).token(SamplingSpec(), 0) == 0


def test_nothing_of_it_loads_torch() -> None:
    script = (
        "import sys\n"
        "import vllm_obs.engine.synthetic.simulation, vllm_obs.engine.synthetic.build\n"
        "import vllm_obs.engine.process, vllm_obs.engine.executor.multiproc, vllm_obs.engine.executor.uniproc\n"
        "import vllm_obs.cli.demo, vllm_obs.cli.demo_load\n"
        "print([name for name in ('torch', 'triton', 'prometheus_client') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"

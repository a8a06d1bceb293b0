"""Every architecture and rope scaling, through the paged cache, against a decoder written down plainly."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from paged_runner import PagedRunner, load, load_torch
from reference_decoder import reference_logits
from tiny_models import TINY_CONFIG, random_tensors, write_model

from vllm_obs.engine.kernels.cpu.jit import this_machine
from vllm_obs.engine.model import loader, numerics
from vllm_obs.engine.model.compiled_decoder import CompiledDecoder
from vllm_obs.engine.model.numerics import Numerics

TOKENS = torch.randint(0, 96, (23,), generator=torch.Generator().manual_seed(5)).tolist()

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 64}

CASES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-tied": {"tie_word_embeddings": True},
    "llama-bias": {"attention_bias": True},
    "llama-own-head-dim": {"head_dim": 16},
    "llama-no-sharing": {"num_key_value_heads": 4},
    "llama-linear": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "llama-dynamic": {"rope_scaling": DYNAMIC},
    "llama-llama3": {"rope_scaling": LLAMA3},
    "llama-yarn": {"rope_scaling": YARN, "head_dim": 32},
    "mistral": {"architectures": ["MistralForCausalLM"], "sliding_window": None},
    "mistral-window": {"architectures": ["MistralForCausalLM"], "sliding_window": 6},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 6, "use_sliding_window": False},
    "qwen2-window": {
        "architectures": ["Qwen2ForCausalLM"],
        "sliding_window": 6,
        "use_sliding_window": True,
        "max_window_layers": 1,
    },
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "head_dim": 16},
}


WIDE = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
"""What makes heads and rows whole vectors, as compiled kernels want them."""


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("is_compiled", [False, True], ids=["torch", "compiled"])
def test_logits_equal_the_plain_decoder_prompt_chunked_and_decoded(
    case: str, is_compiled: bool, tmp_path: Path
) -> None:
    values = TINY_CONFIG | (WIDE if is_compiled else {}) | CASES[case]
    tensors = random_tensors(values)
    if values.get("attention_bias") and not is_compiled:
        tensors |= {f"model.layers.{n}.self_attn.o_proj.bias": torch.randn(32) for n in range(3)}
    expected = reference_logits(values, tensors, TOKENS)
    write_model(tmp_path, values, tensors)
    model = load(tmp_path) if is_compiled else load_torch(tmp_path)
    assert isinstance(model, CompiledDecoder) == (is_compiled and this_machine() is not None)
    runner = PagedRunner(model, 3, len(TOKENS))

    whole = runner.step({0: TOKENS}, logits="all")
    chunks = [runner.step({1: TOKENS[:7]}, logits="all"), runner.step({1: TOKENS[7:12]}, logits="all")]
    decoded = [runner.step({1: [token]}) for token in TOKENS[12:]]

    torch.testing.assert_close(whole.double(), expected, atol=2e-4, rtol=1e-4)
    torch.testing.assert_close(torch.cat(chunks + decoded).double(), expected, atol=2e-4, rtol=1e-4)


def test_a_scaling_changes_the_answer(tmp_path: Path) -> None:
    """Guards the comparison above: each scaling's reference differs from the unscaled one."""
    values = TINY_CONFIG | {"head_dim": 32}
    tensors = random_tensors(values)
    plain = reference_logits(values, tensors, TOKENS)
    for scaling in (LLAMA3, YARN, DYNAMIC, {"rope_type": "linear", "factor": 4.0}):
        scaled = reference_logits(values | {"rope_scaling": scaling}, tensors, TOKENS)
        assert (scaled - plain).abs().max() > 0.01, scaling


@pytest.mark.parametrize("case", ["llama", "qwen2-window", "qwen3"])
def test_a_sequence_does_not_depend_on_who_else_is_in_the_batch(case: str, tmp_path: Path) -> None:
    model = load(write_model(tmp_path, TINY_CONFIG | CASES[case]))
    prompts = [TOKENS[:size] for size in (1, 2, 19, 5, 11, 3)]
    alone = PagedRunner(model, len(prompts), 32, seed=1)
    together = PagedRunner(model, len(prompts), 32, seed=2)

    expected = [alone.step({number: prompt}) for number, prompt in enumerate(prompts)]
    found = together.step(dict(enumerate(prompts)))
    torch.testing.assert_close(found, torch.cat(expected), atol=1e-5, rtol=1e-5)

    # One long row, some of one token, and a chunk, in one step.
    mixed = {2: [7], 0: [8], 4: [9], 1: [10, 11, 12], 3: [13]}
    expected = [alone.step({number: tokens}) for number, tokens in mixed.items()]
    torch.testing.assert_close(together.step(mixed), torch.cat(expected), atol=1e-5, rtol=1e-5)


def test_a_step_that_samples_nothing_still_writes_its_keys(tmp_path: Path) -> None:
    model = load(write_model(tmp_path, TINY_CONFIG))
    runner, other = PagedRunner(model, 1, 16), PagedRunner(model, 1, 16)
    assert runner.step({0: TOKENS[:5]}, logits="none").shape == (0, 96)
    other.step({0: TOKENS[:5]})
    assert torch.equal(runner.step({0: [3]}), other.step({0: [3]}))


@pytest.mark.skipif(this_machine() is None, reason="this machine has no compiled kernels")
def test_a_token_that_is_not_a_number_is_seen_in_its_sequence_only(tmp_path: Path) -> None:
    model: Any = load(write_model(tmp_path, TINY_CONFIG | WIDE))
    expected = PagedRunner(model, 2, 32).step({0: [5] * 20})
    model.inlet.weight[7] = torch.nan
    runner = PagedRunner(model, 2, 32)
    found = runner.step({0: [5] * 20, 1: [6, 7, *[5] * 18]})
    assert torch.equal(found[:1], expected)
    assert found[1].isnan().all()


def test_shards_named_by_an_index_are_one_model(tmp_path: Path) -> None:
    single = load(write_model(tmp_path / "single", TINY_CONFIG))
    sharded = load(write_model(tmp_path / "sharded", TINY_CONFIG, num_files=3))
    logits = [PagedRunner(model, 1, 8).step({0: TOKENS[:8]}) for model in (single, sharded)]
    assert torch.equal(*logits)


def test_dummy_weights_follow_the_seed(tmp_path: Path) -> None:
    write_model(tmp_path, TINY_CONFIG)
    (tmp_path / "model.safetensors").unlink()
    first, again = (load(tmp_path, load_format="dummy") for _ in range(2))
    logits = [PagedRunner(model, 1, 8).step({0: TOKENS[:8]}) for model in (first, again)]
    assert torch.equal(*logits)
    assert logits[0].isfinite().all()
    assert logits[0].std() > 0.1


@pytest.mark.parametrize(("has_instructions", "most"), [(False, 0.2), (True, 0.5)])
def test_bfloat16_stays_near_float32(
    has_instructions: bool, most: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CPU with bfloat16 instructions rounds between all operations, another one the weights only."""
    monkeypatch.setattr(numerics, "multiplies_bfloat16", lambda: has_instructions)
    write_model(tmp_path, TINY_CONFIG)
    exact = PagedRunner(load(tmp_path), 2, 32)
    rounded = PagedRunner(load(tmp_path, "bfloat16"), 2, 32)
    for tokens in ({0: TOKENS[:9], 1: TOKENS[:3]}, {0: [5], 1: [6]}, {0: [7]}):
        difference = (exact.step(tokens).log_softmax(-1) - rounded.step(tokens).log_softmax(-1)).abs()
        assert 0 < difference.max() < most


@pytest.mark.parametrize("case", ["llama", "qwen3"])
def test_bfloat16_between_all_operations_stays_near_too(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a GPU computes in."""

    def like_a_gpu(dtype: torch.dtype, device: torch.device, _: int) -> Numerics:
        return Numerics(device, dtype, dtype, activations=dtype, attention=dtype, cache=dtype, is_packed=False)

    write_model(tmp_path, TINY_CONFIG | CASES[case])
    exact = PagedRunner(load(tmp_path), 2, 32)
    monkeypatch.setattr(loader, "choose_numerics", like_a_gpu)
    rounded = PagedRunner(load(tmp_path, "bfloat16"), 2, 32)
    for tokens in ({0: TOKENS[:9], 1: TOKENS[:3]}, {0: [5], 1: [6]}, {0: [7, 8], 1: [9]}):
        difference = (exact.step(tokens).log_softmax(-1) - rounded.step(tokens).log_softmax(-1)).abs()
        assert 0 < difference.max() < 0.5
        assert difference.mean() < 0.05


def test_block_bytes_are_what_the_cache_takes(tmp_path: Path) -> None:
    for dtype, size in ((torch.float32, 4), (torch.bfloat16, 2)):
        model: Any = load(write_model(tmp_path, TINY_CONFIG))
        model = replace(model, numerics=replace(model.numerics, cache=dtype))
        cache: Any = model.allocate_kv_cache(num_blocks=5, block_size=8)
        taken = sum(layer.numel() * layer.element_size() for layer in cache.layers)
        assert taken == 5 * model.kv_block_bytes(block_size=8) == 5 * 3 * 2 * 2 * 8 * 8 * size

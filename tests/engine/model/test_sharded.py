"""A model shared between ranks, by shards, by stages and by both, gives the logits of the whole."""

from pathlib import Path
from typing import Any

import pytest
import torch
from paged_runner import PagedRunner, load_torch, model_config
from thread_peers import ThreadRanks
from tiny_models import TINY_CONFIG, random_tensors, write_model

from vllm_obs.engine.kernels.cpu.jit import this_machine
from vllm_obs.engine.model.compiled_decoder import CompiledDecoder
from vllm_obs.engine.model.decoder import Decoder
from vllm_obs.engine.model.loader import load_model, load_plain
from vllm_obs.engine.model.weights import open_weights

TOKENS = torch.randint(0, 96, (23,), generator=torch.Generator().manual_seed(5)).tolist()
WIDE = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
"""As compiled kernels want it."""
WIDER = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
"""As they want it of each of four shards."""
TIED_AND_BIASED = {"architectures": ["Qwen2ForCausalLM"], "tie_word_embeddings": True}
EIGHT_HEADS = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 8}

CASES: dict[str, tuple[int, int, dict[str, Any]]] = {
    "two-shards": (2, 1, {}),
    "four-shards-replicated-keys": (4, 1, EIGHT_HEADS),
    "eight-shards-of-one-head": (8, 1, EIGHT_HEADS),
    "two-stages": (1, 2, {}),
    "three-stages-tied": (1, 3, {"tie_word_embeddings": True}),
    "two-by-two": (2, 2, {}),
    "four-by-three-tied": (4, 3, {**EIGHT_HEADS, "tie_word_embeddings": True}),
    "two-shards-tied": (2, 1, {"tie_word_embeddings": True}),
    "odd-vocabulary": (4, 1, {**EIGHT_HEADS, "vocab_size": 97}),
    "more-shards-than-words": (8, 1, {**EIGHT_HEADS, "vocab_size": 9, "tie_word_embeddings": True}),
    "bias": (2, 2, {"attention_bias": True}),
    "window": (2, 1, {"architectures": ["MistralForCausalLM"], "sliding_window": 6}),
    "window-by-stage": (
        1,
        3,
        {
            "architectures": ["Qwen2ForCausalLM"],
            "sliding_window": 6,
            "use_sliding_window": True,
            "max_window_layers": 1,
        },
    ),
    "head-norms": (2, 2, {"architectures": ["Qwen3ForCausalLM"], "head_dim": 16}),
}


def parts_of(path: Path, ranks: ThreadRanks) -> list[Decoder]:
    config = model_config(path)
    return [load_plain(config, open_weights(config.model), place) for place in ranks.places]


@pytest.mark.parametrize("case", CASES)
def test_the_logits_are_those_of_the_whole(case: str, tmp_path: Path) -> None:
    num_shards, num_stages, changes = CASES[case]
    values = TINY_CONFIG | changes
    tensors = random_tensors(values)
    if values.get("attention_bias"):
        tensors |= {f"model.layers.{n}.self_attn.o_proj.bias": torch.randn(32) for n in range(3)}
    write_model(tmp_path, values, tensors)
    tokens = [token % values["vocab_size"] for token in TOKENS]
    steps: list[Any] = [({0: tokens}, "all"), ({1: tokens[:7], 2: tokens[:3]}, "all")]
    steps += [({1: tokens[7:12], 0: [5]}, "last"), ({2: tokens[3:9]}, "none"), ({1: [6], 2: [7], 0: [8]}, "last")]

    whole = PagedRunner(load_torch(tmp_path), 3, 40)
    expected = [whole.step(*step) for step in steps]
    ranks = ThreadRanks(num_shards, num_stages)
    parts = parts_of(tmp_path, ranks)

    def run(rank: int) -> list[torch.Tensor]:
        runner = PagedRunner(parts[rank], 3, 40)
        makes_logits = ranks.places[rank].partition.is_last_stage
        return [runner.step(*step) if makes_logits else runner.hidden(*step) for step in steps]

    outputs = ranks.run(run)
    for found, wanted in zip(outputs[ranks.output_rank], expected, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
    for rank, found_by_step in enumerate(outputs):
        if rank != ranks.output_rank:
            assert all(found.numel() == 0 for found in found_by_step), "only the output rank has logits"


@pytest.mark.skipif(this_machine() is None, reason="this machine has no compiled kernels")
@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": True, "num_hidden_layers": 5}], ids=["", "tied"])
@pytest.mark.parametrize("num_stages", [2, 3])
def test_stages_of_compiled_kernels_give_the_whole_to_the_bit(
    num_stages: int, changes: dict[str, Any], tmp_path: Path
) -> None:
    config = model_config(write_model(tmp_path, TINY_CONFIG | WIDE | changes))
    ranks = ThreadRanks(1, num_stages)
    parts: list[Any] = [load_model(config, place) for place in ranks.places]
    assert all(isinstance(part, CompiledDecoder) for part in parts)

    def run(rank: int) -> list[torch.Tensor]:
        runner = PagedRunner(parts[rank], 2, 40)
        step = runner.step if ranks.places[rank].partition.is_last_stage else runner.hidden
        return [step({0: TOKENS, 1: TOKENS[:5]}, "all"), step({0: [5], 1: [6, 7]})]

    whole = PagedRunner(load_model(config), 2, 40)
    expected = [whole.step({0: TOKENS, 1: TOKENS[:5]}, "all"), whole.step({0: [5], 1: [6, 7]})]
    assert all(torch.equal(*pair) for pair in zip(ranks.run(run)[-1], expected, strict=True))


@pytest.mark.skipif(this_machine() is None, reason="this machine has no compiled kernels")
@pytest.mark.parametrize(("num_shards", "num_stages"), [(2, 1), (4, 1), (2, 3)])
@pytest.mark.parametrize(
    "changes", [{}, {"architectures": ["Qwen3ForCausalLM"], "vocab_size": 97}, TIED_AND_BIASED]
)
def test_shards_of_compiled_kernels_give_the_whole(
    num_shards: int, num_stages: int, changes: dict[str, Any], tmp_path: Path
) -> None:
    config = model_config(write_model(tmp_path, TINY_CONFIG | WIDER | changes))
    ranks = ThreadRanks(num_shards, num_stages)
    parts: list[Any] = [load_model(config, place) for place in ranks.places]
    assert all(isinstance(part, CompiledDecoder) for part in parts)
    steps: list[Any] = [({0: TOKENS, 1: TOKENS[:5]}, "all"), ({0: [5], 1: [6, 7]}, "last"), ({1: [9]}, "none")]

    def run(rank: int) -> list[torch.Tensor]:
        runner = PagedRunner(parts[rank], 2, 40)
        step = runner.step if ranks.places[rank].partition.is_last_stage else runner.hidden
        return [step(*each) for each in steps]

    whole = PagedRunner(load_model(config), 2, 40)
    for found, wanted in zip(
        ranks.run(run)[ranks.output_rank], [whole.step(*each) for each in steps], strict=True
    ):
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


def test_each_rank_holds_its_part_only(tmp_path: Path) -> None:
    values = TINY_CONFIG | EIGHT_HEADS
    write_model(tmp_path, values)
    parts = parts_of(tmp_path, ThreadRanks(4, 3))
    whole = load_torch(tmp_path)
    assert whole.kv_block_bytes(4) == 3 * 2 * 2 * 4 * 8 * 4
    assert {part.kv_block_bytes(4) for part in parts} == {1 * 2 * 1 * 4 * 8 * 4}
    assert [len(part.layers) for part in parts] == [1] * 12
    shape = parts[0].architecture
    assert (shape.num_heads, shape.num_kv_heads, shape.intermediate_size, shape.num_layers) == (2, 1, 12, 1)


def test_logits_asked_for_again_are_made_without_the_other_shards(tmp_path: Path) -> None:
    write_model(tmp_path, TINY_CONFIG)
    ranks = ThreadRanks(2, 1)
    parts = parts_of(tmp_path, ranks)
    hidden = torch.randn(3, 32)

    def ask(rank: int) -> list[torch.Tensor]:
        first = parts[rank].compute_logits(hidden)
        if rank:
            return [first]
        first_copy = first.clone()
        with torch.inference_mode():
            first.zero_()  # as a sampler may
        return [first_copy, parts[rank].compute_logits(hidden)]

    first, again = ranks.run(ask)[0]
    assert torch.equal(first, again)
    torch.testing.assert_close(first, load_torch(tmp_path).compute_logits(hidden), atol=1e-5, rtol=1e-5)

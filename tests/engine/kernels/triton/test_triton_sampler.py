"""The sampler of kernels answers as the sampler of torch does: tokens, log-probabilities, and rows that fail."""

from typing import Any

import numpy as np
import pytest
import torch
from fake_device import FakeDevice
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_obs.engine import faults
from vllm_obs.engine.kernels.triton.configs import configs_for
from vllm_obs.engine.messages import SamplingSpec
from vllm_obs.engine.plan import GrammarMasks
from vllm_obs.engine.sampling.columns import SamplingBatch, SamplingColumns
from vllm_obs.engine.sampling.launched import TorchSampler, make_sampler
from vllm_obs.engine.sampling.sampler import SampledTokens
from vllm_obs.engine.sampling.triton_sampler import TritonSampler
from vllm_obs.engine.sampling.triton_scores import ALTERNATIVES

VOCAB = 200
KERNELS = TritonSampler(configs_for(90), FakeDevice())
NUM_PROMPT = 4

specs = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.7, 1.3]),
        "top_k": st.sampled_from([0, 5, 500]),
        "top_p": st.sampled_from([1.0, 0.8]),
        "min_p": st.sampled_from([0.0, 0.05]),
        "seed": st.integers(-3, 2**64),
        "sequence_index": st.integers(0, 3),
        "repetition_penalty": st.sampled_from([1.0, 1.3]),
        "presence_penalty": st.sampled_from([0.0, 0.7]),
        "frequency_penalty": st.sampled_from([0.0, -0.4]),
        "min_tokens": st.sampled_from([0, 2, 9]),
        "stop_token_ids": st.sampled_from([(), (3, 150)]),
        "logit_bias": st.sampled_from([(), ((3, 4.0), (199, 2.0), (3, 1.0))]),
        "allowed_token_ids": st.sampled_from([(), tuple(range(0, 200, 7)), (150,)]),
        "bad_words_ids": st.sampled_from([(), ((8,), (11, 9))]),
        "logprobs": st.sampled_from([None, 0, 1, 3]),
    }
).map(lambda fields: SamplingSpec(**fields))


def batch_of(rows: list[SamplingSpec], vocab_size: int = VOCAB, num_outputs: int = 5) -> SamplingBatch:
    """Rows that have generated something, in another order than they lie in the columns."""
    random = np.random.default_rng(len(rows))
    columns = SamplingColumns(len(rows) + 1, vocab_size)
    token_ids = random.integers(0, vocab_size, (len(rows) + 1, NUM_PROMPT + num_outputs), dtype=np.int32)
    places = random.permutation(len(rows) + 1)[: len(rows)]
    for place, spec in zip(places.tolist(), rows, strict=True):
        columns.set_row(place, spec, token_ids[place], NUM_PROMPT)
    lengths = np.full(len(rows), NUM_PROMPT)
    return SamplingBatch(
        columns, places, [f"r{row}" for row in range(len(rows))], lengths + num_outputs, lengths, token_ids
    )


def masks_for(names: list[str], vocab_size: int = VOCAB) -> GrammarMasks:
    """Some tokens of these rows, and a row that is not sampled."""
    random = np.random.default_rng(len(names))
    words = random.integers(-(2**31), 2**31, (len(names) + 1, -(-vocab_size // 32)), dtype=np.int32)
    return GrammarMasks(["another", *names], words)


def check(logits: torch.Tensor, batch: SamplingBatch, masks: GrammarMasks | None = None) -> SampledTokens:
    """Both samplers; what they say."""
    expected = TorchSampler().launch(logits.clone, batch, masks).result()
    found = KERNELS.launch(logits.clone, batch, masks).result()
    assert found.token_ids == expected.token_ids
    assert found.failed == expected.failed
    assert [name for name, _ in found.logprobs] == [name for name, _ in expected.logprobs]
    for (_, one), (_, other) in zip(found.logprobs, expected.logprobs, strict=True):
        assert one.token_ids.tolist() == other.token_ids.tolist()
        assert one.ranks.tolist() == other.ranks.tolist()
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)
        assert (one.token_ids.dtype, one.logprobs.dtype, one.ranks.dtype) == (np.int32, np.float32, np.int32)
    return found


@settings(max_examples=9, deadline=None, database=None, derandomize=True)
@given(st.lists(specs, min_size=1, max_size=4), st.integers(0, 2**32 - 1), st.booleans())
def test_any_parameters_give_the_same_answer(rows: list[SamplingSpec], seed: int, is_masked: bool) -> None:
    logits = torch.randn(len(rows), VOCAB, generator=torch.Generator().manual_seed(seed)) * 3
    batch = batch_of(rows)
    check(logits, batch, masks_for(batch.request_ids[::2]) if is_masked else None)


def test_a_plain_batch_needs_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice()
    rows = [SamplingSpec(temperature=0.0), SamplingSpec(seed=7)]
    launched = TritonSampler(configs_for(90), device).launch(lambda: torch.randn(2, VOCAB), batch_of(rows), None)
    assert device.calls == ["upload", "download"]
    assert launched.tokens is not None
    assert launched.tokens.tolist() == launched.result().token_ids
    assert device.calls == ["upload", "download", "wait"]


def test_rows_with_broken_logits_and_rows_with_nothing_left_fail_alone() -> None:
    logits = torch.randn(5, VOCAB)
    logits[0, 3], logits[2], logits[3, 9] = torch.nan, -torch.inf, torch.inf
    nothing_left = SamplingSpec(allowed_token_ids=(8,), bad_words_ids=((8,),), logprobs=1)
    rows = [SamplingSpec(logprobs=1), nothing_left, SamplingSpec(), nothing_left, SamplingSpec(logprobs=2)]
    found = check(logits, batch_of(rows))
    assert [token < 0 for token in found.token_ids] == [True, True, True, True, False]
    assert [(name, reason) for name, reason, _ in found.failed] == [
        ("r0", "invalid_logits"),
        ("r2", "invalid_logits"),
        ("r3", "invalid_logits"),
        ("r1", "invalid_value"),
    ]
    plain = logits[[0, 4]]
    assert check(plain, batch_of([SamplingSpec(), SamplingSpec()])).token_ids[0] == -1


def test_a_grammar_that_leaves_only_the_end_ends_before_min_tokens() -> None:
    masks = GrammarMasks(["r0", "r1"], np.zeros((2, -(-VOCAB // 32)), np.int32))
    masks.bitmask[:, 0] = 1 << 3
    masks.bitmask[1, 0] |= 1 << 9
    rows = [SamplingSpec(temperature=0.0, min_tokens=9, stop_token_ids=(3,))] * 2
    assert check(torch.randn(2, VOCAB), batch_of(rows), masks).token_ids == [3, 9]


def test_more_alternatives_than_a_kernel_finds_are_sorted_without_a_wait() -> None:
    many, ties = SamplingSpec(logprobs=ALTERNATIVES[-1] + 1), torch.randn(3, VOCAB).mul_(2).round_()
    check(ties, batch_of([many, SamplingSpec(logprobs=1), many._replace(temperature=0.0, logit_bias=((3, 9.0),))]))
    device = FakeDevice()
    launched = TritonSampler(configs_for(90), device).launch(ties.clone, batch_of([many] * 3), None)
    assert device.calls == ["upload", "download"]
    assert launched.tokens is not None


def test_alternatives_end_at_the_vocabulary() -> None:
    check(torch.randn(1, 5), batch_of([SamplingSpec(logprobs=4)], vocab_size=5))


def test_an_error_with_one_row_fails_that_one_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "_FAULTS", {"sampler": ("raise", "r1")})
    found = check(torch.randn(3, VOCAB), batch_of([SamplingSpec(temperature=0.0)] * 3))
    assert [(name, reason) for name, reason, _ in found.failed] == [("r1", "internal_error")]


def test_the_sampler_goes_with_the_backend() -> None:
    class WithCard:
        class card:  # noqa: N801 - it stands for an attribute
            configs = configs_for(80)

    model: Any = WithCard()
    assert isinstance(make_sampler(model, FakeDevice()), TritonSampler)
    assert isinstance(make_sampler(object(), FakeDevice()), TorchSampler)

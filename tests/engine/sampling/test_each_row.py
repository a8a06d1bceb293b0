"""Whatever goes wrong while one row is sampled fails that row; its peers get the tokens they get without it."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from vllm_obs.engine.messages import SamplingSpec
from vllm_obs.engine.sampling import sampler
from vllm_obs.engine.sampling.columns import SamplingBatch
from vllm_obs.engine.sampling.each_row import FAILED, sample_rows
from vllm_obs.engine.sampling.sampler import sample

VOCAB = 256
SPECS = [
    SamplingSpec(temperature=0.0, logprobs=2),
    SamplingSpec(temperature=0.7, top_p=0.9, seed=3, logprobs=0),
    SamplingSpec(repetition_penalty=1.3, seed=4),
    SamplingSpec(bad_words_ids=((5,),), seed=5, logprobs=1),
]
BatchMaker = Callable[..., SamplingBatch]


class Logits:
    """The same logits whenever they are asked for, and how often that was."""

    def __init__(self, num_rows: int) -> None:
        random = np.random.default_rng(0)
        self._logits = torch.from_numpy(random.normal(size=(num_rows, VOCAB)).astype(np.float32))
        self.num_asked = 0

    def __call__(self) -> torch.Tensor:
        self.num_asked += 1
        return self._logits.clone()


def poison(monkeypatch: pytest.MonkeyPatch, *request_ids: str, error: type[Exception] = RuntimeError) -> None:
    def fault(site: str, name: str = "") -> None:
        if site == "sampler" and name in request_ids:
            raise error("planted")

    monkeypatch.setattr(sampler, "any_planted", lambda: True)
    monkeypatch.setattr(sampler, "maybe_fault", fault)


def test_a_row_that_raises_fails_alone(make_batch: BatchMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    logits = Logits(len(SPECS))
    expected = sample(logits(), make_batch(SPECS, VOCAB), None)
    poison(monkeypatch, "r1")
    sampled = sample_rows(logits, make_batch(SPECS, VOCAB), None)
    assert sampled.token_ids == [-1 if row == 1 else token for row, token in enumerate(expected.token_ids)]
    assert sampled.failed == [("r1", "internal_error", FAILED)]
    assert [name for name, _ in sampled.logprobs] == ["r0", "r3"]
    for name, got in sampled.logprobs:
        wanted = dict(expected.logprobs)[name]
        assert [column.tolist() for column in got] == [column.tolist() for column in wanted]


def test_what_fails_every_row_is_no_row_s_fault(make_batch: BatchMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch, *(f"r{row}" for row in range(len(SPECS))))
    with pytest.raises(RuntimeError, match="planted"):
        sample_rows(Logits(len(SPECS)), make_batch(SPECS, VOCAB), None)


def test_the_only_row_of_a_step_fails_alone_too(make_batch: BatchMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch, "r0")
    sampled = sample_rows(Logits(1), make_batch(SPECS[:1], VOCAB), None)
    assert (sampled.token_ids, sampled.failed) == ([-1], [("r0", "internal_error", FAILED)])


def test_no_memory_is_nobody_s_fault(make_batch: BatchMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch, "r0", error=MemoryError)
    with pytest.raises(MemoryError):
        sample_rows(Logits(len(SPECS)), make_batch(SPECS, VOCAB), None)


def test_no_memory_for_one_row_is_nobody_s_fault_either(
    make_batch: BatchMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = iter([RuntimeError("planted"), MemoryError()])
    monkeypatch.setattr(sampler, "any_planted", lambda: True)
    monkeypatch.setattr(sampler, "maybe_fault", lambda site, name="": raise_next(errors) if name == "r1" else None)
    with pytest.raises(MemoryError):
        sample_rows(Logits(len(SPECS)), make_batch(SPECS, VOCAB), None)


def raise_next(errors: Iterator[Exception]) -> None:
    raise next(errors)


def test_where_nothing_goes_wrong_logits_are_made_once(make_batch: BatchMaker) -> None:
    logits = Logits(len(SPECS))
    assert sample_rows(logits, make_batch(SPECS, VOCAB), None).failed == []
    assert logits.num_asked == 1

"""Batches made by hand for the sampler."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
import torch

from vllm_obs.engine.messages import SamplingSpec
from vllm_obs.engine.sampling.columns import SamplingBatch, SamplingColumns

BatchMaker = Callable[..., SamplingBatch]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def make_batch() -> BatchMaker:
    def make(
        specs: Sequence[SamplingSpec],
        vocab_size: int,
        prompts: Sequence[Sequence[int]] | None = None,
        outputs: Sequence[Sequence[int]] | None = None,
    ) -> SamplingBatch:
        prompts = prompts or [[1]] * len(specs)
        outputs = outputs or [[]] * len(specs)
        tokens = [[*prompt, *output] for prompt, output in zip(prompts, outputs, strict=True)]
        token_ids = np.zeros((len(specs), max(map(len, tokens))), np.int32)
        columns = SamplingColumns(len(specs), vocab_size)
        for row, (spec, known) in enumerate(zip(specs, tokens, strict=True)):
            token_ids[row, : len(known)] = known
            columns.set_row(row, spec, token_ids[row, : len(known)], len(prompts[row]))
        return SamplingBatch(
            columns=columns,
            rows=np.arange(len(specs)),
            request_ids=[f"r{row}" for row in range(len(specs))],
            num_tokens=np.array([len(known) for known in tokens]),
            num_prompt_tokens=np.array([len(prompt) for prompt in prompts]),
            token_ids=token_ids,
        )

    return make

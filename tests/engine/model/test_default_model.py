"""The default model against greedy continuations that another implementation computed (tests/data/README.md)."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from paged_runner import PagedRunner, load

from vllm_obs.engine.config import Dtype

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "data" / "smollm2_greedy.json").read_text("utf-8")
)


class Continuation:
    """Feeds the reference's own tokens to all prompts at once and yields each step's log-probabilities."""

    def __init__(self, dtype: Dtype) -> None:
        self._runner = PagedRunner(load(None, dtype, max_model_len=128), len(CASES), 112)
        self._tokens = [case["prompt_token_ids"] for case in CASES]

    def step(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(argmax, log-probability of the reference's token) of each prompt, both (14,)."""
        logits = self._runner.step(dict(enumerate(self._tokens))).log_softmax(-1)
        chosen = torch.tensor([case["output_token_ids"][number] for case in CASES])
        self._tokens = [[token] for token in chosen.tolist()]
        return logits.argmax(-1), logits.gather(1, chosen[:, None])[:, 0]


def reference(number: int) -> tuple[list[int], torch.Tensor]:
    """(tokens, log-probabilities) of the reference at a step."""
    logprobs = torch.tensor([case["logprobs"][number] for case in CASES])
    return [case["output_token_ids"][number] for case in CASES], logprobs


def test_float32_gives_every_token_of_the_reference() -> None:
    continuation = Continuation("float32")
    for number in range(64):
        best, logprobs = continuation.step(number)
        tokens, expected = reference(number)
        assert best.tolist() == tokens, f"step {number}"
        torch.testing.assert_close(logprobs, expected, atol=1e-3, rtol=0)


def test_bfloat16_agrees_on_the_first_tokens_and_nearly_on_log_probabilities() -> None:
    continuation = Continuation("bfloat16")
    for number in range(16):
        best, logprobs = continuation.step(number)
        tokens, expected = reference(number)
        torch.testing.assert_close(logprobs, expected, atol=0.1, rtol=0)
        if number == 0:
            assert best.tolist() == tokens


@pytest.mark.parametrize("case", [0, 9])
def test_bfloat16_alone_in_the_batch_agrees_too(case: int) -> None:
    prompt, output = CASES[case]["prompt_token_ids"], CASES[case]["output_token_ids"]
    runner = PagedRunner(load(None, "bfloat16", max_model_len=128), 1, 112)
    tokens = prompt
    for number in range(8):
        logprob = runner.step({0: tokens}).log_softmax(-1)[0, output[number]]
        assert logprob.item() == pytest.approx(CASES[case]["logprobs"][number], abs=0.1)
        tokens = [output[number]]

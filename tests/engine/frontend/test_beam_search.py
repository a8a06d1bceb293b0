"""Beam search over a made-up model: as good as trying everything, and within the engine's limits."""

import math
from itertools import product
from typing import Any

import pytest
from default_model import default_tokenizer

from vllm_obs.engine.errors import RequestError
from vllm_obs.engine.frontend.beam_search import BeamLimits, BeamSearch, BeamSearchParams
from vllm_obs.engine.frontend.outputs import CompletionOutput, Logprob
from vllm_obs.engine.sampling_params import SamplingParams

END = 2
TOKENS = (END, 300, 500, 700)
PROMPT = [19556, 905]
LIMITS = BeamLimits(max_logprobs=100, max_model_len=2048)


def logprob_of(before: list[int], token: int) -> float:
    """A distribution over four tokens that depends on all tokens before."""
    weights = [1 + math.sin(sum(i * t for i, t in enumerate(before, 1)) + choice) ** 2 for choice in TOKENS]
    return math.log(weights[TOKENS.index(token)] / sum(weights))


class ToyModel:
    """Gives the log-probabilities of the four tokens; keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, SamplingParams]] = []

    def run(self, prompts: list[list[int]], params: SamplingParams) -> list[CompletionOutput]:
        self.asked.append((len(prompts), params))
        return [CompletionOutput(0, logprobs=[self._candidates(prompt)]) for prompt in prompts]

    def _candidates(self, prompt: list[int]) -> dict[int, Logprob]:
        return {token: Logprob(logprob_of(prompt, token), 1, "") for token in TOKENS}


def search(params: BeamSearchParams, limits: BeamLimits = LIMITS, prompts: Any = (PROMPT,)) -> list[Any]:
    """For each prompt the tokens made and the score of each sequence."""
    outputs = BeamSearch(params, default_tokenizer(), limits, ToyModel().run).search(list(prompts))
    return [
        [(beam.tokens[len(prompt) :], round(beam.cum_logprob, 9), beam.finish_reason) for beam in output.sequences]
        for prompt, output in zip(prompts, outputs, strict=True)
    ]


def all_sequences(num_tokens: int, length_penalty: float, ignore_eos: bool = False) -> list[Any]:
    """Every sequence of so many tokens, or that ends before, best first."""
    found: dict[tuple[int, ...], tuple[float, list[int], float, str]] = {}
    for tokens in product(TOKENS, repeat=num_tokens):
        is_ended = END in tokens and not ignore_eos
        made = tokens[: tokens.index(END) + 1] if is_ended else tokens
        total = sum(logprob_of([*PROMPT, *made[:i]], token) for i, token in enumerate(made))
        shown = list(made[:-1] if is_ended else made)
        score = total / (len(PROMPT) + len(shown)) ** length_penalty
        found[made] = score, shown, round(total, 9), "stop" if is_ended else "length"
    ordered = sorted(found.values(), key=lambda entry: entry[0], reverse=True)
    return [entry[1:] for entry in ordered]


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.5])
@pytest.mark.parametrize("ignore_eos", [False, True])
def test_a_beam_wide_enough_finds_the_best_there_are(length_penalty: float, ignore_eos: bool) -> None:
    params = BeamSearchParams(16, 3, ignore_eos=ignore_eos, length_penalty=length_penalty)
    assert search(params) == [all_sequences(3, length_penalty, ignore_eos)[:16]]


def test_a_beam_of_one_is_greedy() -> None:
    ((beam,),) = search(BeamSearchParams(1, 6, ignore_eos=True))
    made: list[int] = []
    for _ in range(6):
        made.append(max(TOKENS, key=lambda token: logprob_of([*PROMPT, *made], token)))
    assert beam[0] == made


def test_prompts_are_searched_together_and_apart_alike() -> None:
    params = BeamSearchParams(3, 4)
    prompts = ([19556], PROMPT, [905, 905, 905])
    assert search(params, prompts=prompts) == [search(params, prompts=[prompt])[0] for prompt in prompts]


def test_each_step_is_one_request_a_beam() -> None:
    model = ToyModel()
    BeamSearch(
        BeamSearchParams(3, 4, ignore_eos=True, temperature=0.5), default_tokenizer(), LIMITS, model.run
    ).search([PROMPT, PROMPT])
    assert [num for num, _ in model.asked] == [2, 6, 6, 6]
    params = SamplingParams(temperature=0.5, max_tokens=1, logprobs=6, ignore_eos=True, detokenize=False)
    assert {asked for _, asked in model.asked} == {params}


def test_the_text_is_of_prompt_and_answer_and_an_end_is_kept_on_request() -> None:
    for keeps_end in (False, True):
        params = BeamSearchParams(16, 2, include_stop_str_in_output=keeps_end)
        (output,) = BeamSearch(params, default_tokenizer(), LIMITS, ToyModel().run).search([PROMPT])
        assert len(output.sequences) == 13
        for beam in output.sequences:
            has_end = beam.finish_reason == "stop"
            assert (beam.tokens[-1] == END) is (has_end and keeps_end)
            assert beam.stop_reason == (END if has_end else None)
            assert beam.text == default_tokenizer().decode(beam.tokens, skip_special_tokens=False)
            assert beam.text.startswith("Hello world")
            assert len(beam.logprobs) == len(beam.tokens) - len(PROMPT) + (has_end and not keeps_end)


def test_beams_end_at_the_context() -> None:
    limits = LIMITS.__class__(max_logprobs=100, max_model_len=len(PROMPT) + 2)
    assert search(BeamSearchParams(16, 9), limits) == [all_sequences(2, 1.0)]


@pytest.mark.parametrize(
    ("params", "param", "limit"),
    [
        (BeamSearchParams(0, 4), "beam_width", "at least 1"),
        (BeamSearchParams(11, 4), "beam_width", "max_logprobs allows 20"),
        (BeamSearchParams(2, 0), "max_tokens", "at least 1"),
    ],
)
def test_what_cannot_be_searched_is_refused(params: BeamSearchParams, param: str, limit: str) -> None:
    with pytest.raises(RequestError, match=limit) as refused:
        search(params, BeamLimits(20, 2048))
    assert refused.value.param == param

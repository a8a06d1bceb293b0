"""Beam search: the best continuations by the sum of their log-probabilities, on one-token requests."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from vllm_obs.engine.errors import RequestError, shown
from vllm_obs.engine.frontend.outputs import CompletionOutput, Logprob
from vllm_obs.engine.frontend.tokenizer import Tokenizer
from vllm_obs.engine.sampling_params import SamplingParams

Continue = Callable[[list[list[int]], SamplingParams], list[CompletionOutput]]
"""Runs prompts of token ids, each for what the parameters say, and gives their outputs in order."""


@dataclass(frozen=True)
class BeamSearchParams:
    """vLLM's parameters of a beam search, with its names and defaults.

    `length_penalty` is the power of the length that a score is divided by: above 0 it favours long sequences.
    A `temperature` above 0 adds one token drawn at it to what each beam may go on with.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False


@dataclass
class BeamSearchSequence:
    """One beam. `tokens` and `text` begin with the prompt; `logprobs` are of what follows it, one a token.

    `cum_logprob` is the sum over the tokens made, an end-of-sequence token among them. `finish_reason` is stop
    where that came, else length.
    """

    tokens: list[int]
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    cum_logprob: float = 0.0
    text: str = ""
    finish_reason: str | None = None
    stop_reason: int | None = None

    def score(self, length_penalty: float) -> float:
        """What beams are ordered by. The length is that of prompt and answer, without an end-of-sequence token."""
        has_end = self.finish_reason == "stop" and self.tokens[-1] == self.stop_reason
        return self.cum_logprob / math.pow(len(self.tokens) - has_end, length_penalty)


@dataclass
class BeamSearchOutput:
    """The best sequences of one prompt, best first; at most `beam_width`."""

    sequences: list[BeamSearchSequence]


@dataclass(frozen=True)
class BeamLimits:
    """What an engine allows: so many log-probabilities a token, and so many tokens a sequence."""

    max_logprobs: int
    max_model_len: int


@dataclass
class _Search:
    """The search over one prompt: beams that go on, and those that ended."""

    beams: list[BeamSearchSequence]
    completed: list[BeamSearchSequence] = field(default_factory=list)


class BeamSearch:
    """Searches several prompts in step: one request a beam and token, of which the prefix is cached.

    Each beam may go on with its 2 * beam_width likeliest tokens; the best `beam_width` of all go on, those that
    end in an end-of-sequence token are set aside. In the end the best of both are taken. (The procedure is vLLM's
    and Hugging Face's, without early stopping.)
    """

    def __init__(self, params: BeamSearchParams, tokenizer: Tokenizer, limits: BeamLimits, run: Continue) -> None:
        _check(params, limits)
        self._params = params
        self._tokenizer = tokenizer
        self._max_model_len = limits.max_model_len
        self._run = run
        self._end_ids = frozenset() if params.ignore_eos else frozenset(tokenizer.eos_token_ids)
        self._sampling = SamplingParams(
            temperature=params.temperature,
            max_tokens=1,
            logprobs=2 * params.beam_width,
            ignore_eos=True,
            detokenize=False,
        )

    def search(
        self, prompts: Sequence[list[int]], on_step: Callable[[], object] = lambda: None
    ) -> list[BeamSearchOutput]:
        """The best sequences of each prompt. `on_step` is called max_tokens times. Raises what a request does."""
        searches = [_Search([BeamSearchSequence(prompt)]) for prompt in prompts]
        for _ in range(self._params.max_tokens):
            self._extend(searches)
            on_step()
        return [BeamSearchOutput(self._best(search)) for search in searches]

    def _extend(self, searches: list[_Search]) -> None:
        """One more token for every beam that may have one."""
        # A prompt that does not fit has no beam yet that does: the engine refuses it.
        going = [search for search in searches if search.beams and not self._is_full(search.beams[0])]
        prompts = [beam.tokens for search in going for beam in search.beams]
        outputs = iter(self._run(prompts, self._sampling) if prompts else [])
        for search in going:
            candidates = [
                candidate
                for beam in search.beams
                for candidate in self._continuations(beam, next(outputs))
                if not self._set_aside(candidate, search)
            ]
            search.beams = self._ordered(candidates)[: self._params.beam_width]

    def _is_full(self, beam: BeamSearchSequence) -> bool:
        return bool(beam.logprobs) and len(beam.tokens) >= self._max_model_len

    def _continuations(self, beam: BeamSearchSequence, output: CompletionOutput) -> list[BeamSearchSequence]:
        assert output.logprobs is not None
        candidates = output.logprobs[0]
        logprobs = [*beam.logprobs, candidates]
        return [
            BeamSearchSequence([*beam.tokens, token_id], logprobs, beam.cum_logprob + candidate.logprob)
            for token_id, candidate in candidates.items()
        ]

    def _set_aside(self, beam: BeamSearchSequence, search: _Search) -> bool:
        """Whether it has ended; it is among the completed then."""
        last = beam.tokens[-1]
        if last not in self._end_ids:
            return False
        search.completed.append(replace(beam, finish_reason="stop", stop_reason=last))
        search.completed = self._ordered(search.completed)[: self._params.beam_width]
        return True

    def _best(self, search: _Search) -> list[BeamSearchSequence]:
        unfinished = [replace(beam, finish_reason="length") for beam in search.beams]
        best = self._ordered([*search.completed, *unfinished])[: self._params.beam_width]
        return [self._shown(beam) for beam in best]

    def _ordered(self, beams: list[BeamSearchSequence]) -> list[BeamSearchSequence]:
        return sorted(beams, key=lambda beam: beam.score(self._params.length_penalty), reverse=True)

    def _shown(self, beam: BeamSearchSequence) -> BeamSearchSequence:
        is_cut = beam.finish_reason == "stop" and not self._params.include_stop_str_in_output
        tokens = beam.tokens[:-1] if is_cut else beam.tokens
        return replace(beam, tokens=tokens, text=self._tokenizer.decode(tokens, skip_special_tokens=False))


def _check(params: BeamSearchParams, limits: BeamLimits) -> None:
    for name, least in (("beam_width", 1), ("max_tokens", 1)):
        value = getattr(params, name)
        if type(value) is not int or value < least:
            raise RequestError(f"{name} must be an integer of at least {least}, got {shown(value)}.", name)
    if 2 * params.beam_width > limits.max_logprobs:
        raise RequestError(
            f"beam_width={params.beam_width} needs {2 * params.beam_width} log-probabilities a token; "
            f"max_logprobs allows {limits.max_logprobs}.",
            "beam_width",
        )

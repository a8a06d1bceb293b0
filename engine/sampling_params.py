"""How a request wants its tokens sampled."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm_obs.engine.errors import RequestError, shown
from vllm_obs.engine.messages import SamplingSpec
from vllm_obs.engine.pooling.kinds import PoolingKind

if TYPE_CHECKING:
    from vllm_obs.engine.structured.params import StructuredOutputsParams

GREEDY_BELOW = 1e-5
MAX_LOGIT_BIAS = 100.0
MAX_REPETITION = 1e6
"""A repetition penalty beyond it, or its inverse, has the same effect, and leaves float32 logits finite."""


@dataclass(frozen=True)
class SamplingParams:
    """vLLM's sampling parameters, with its names and defaults.

    `temperature` 0 is greedy; `top_k` 0 or -1, `top_p` 1 and `min_p` 0 switch a filter off. `max_tokens` None is
    what fits in the context; 0 scores the prompt only (its sequence ends with `length` and no token).
    `logprobs` is the number of alternatives (0 = the sampled token's own). `stop` is one string or several.
    `spaces_between_special_tokens` is accepted for compatibility: the tokenizers served here put none.
    `structured_outputs` is what the output must match.
    `truncate_prompt_tokens` keeps that many of the prompt's last tokens (-1: as many as the context allows).
    `pooling` asks for one vector of the prompt in place of tokens (`engine/pooling/params.py` makes such
    parameters); `max_tokens` is 0 then, and a prompt that is truncated keeps its beginning.
    Values are normalised here (lists become tuples) and checked by `sampling_checks`.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    stop: str | Iterable[str] | None = ()
    stop_token_ids: Iterable[int] | None = ()
    bad_words: Iterable[str] | None = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Iterable[int] | None = None
    truncate_prompt_tokens: int | None = None
    structured_outputs: "StructuredOutputsParams | None" = None
    pooling: PoolingKind | None = None

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        self._fix("stop", () if stop is None else stop)
        for name in ("stop_token_ids", "bad_words"):
            self._fix(name, getattr(self, name) or ())
        if self.allowed_token_ids is not None:
            self._fix("allowed_token_ids", self.allowed_token_ids)
        if self.seed == -1:
            object.__setattr__(self, "seed", None)

    def _fix(self, name: str, values: Any) -> None:
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise RequestError(f"{name} must be a list, not {shown(values)}.", name)
        object.__setattr__(self, name, tuple(values))

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as it is kept."""
        return tuple(self.stop or ())

    @property
    def is_greedy(self) -> bool:
        """Whether the best token is always taken."""
        return self.temperature < GREEDY_BELOW


def to_spec(params: SamplingParams, max_tokens: int, eos_token_ids: tuple[int, ...]) -> SamplingSpec:
    """The wire form of checked params, for sequence 0 with seed 0 and without bad words (`_replace` fills those).

    `max_tokens` is the resolved limit; with 0 (score the prompt only) the core makes one token, which nobody sees.
    """
    greedy = params.is_greedy
    return SamplingSpec(
        temperature=0.0 if greedy else float(params.temperature),
        top_p=1.0 if greedy else float(params.top_p),
        top_k=0 if greedy else max(params.top_k, 0),
        min_p=0.0 if greedy else float(params.min_p),
        repetition_penalty=min(MAX_REPETITION, max(1 / MAX_REPETITION, float(params.repetition_penalty))),
        presence_penalty=float(params.presence_penalty),
        frequency_penalty=float(params.frequency_penalty),
        max_tokens=max_tokens,
        min_tokens=min(params.min_tokens, max_tokens),
        stop_token_ids=tuple(dict.fromkeys(params.stop_token_ids or ())),
        eos_token_ids=() if params.ignore_eos else eos_token_ids,
        logit_bias=tuple(
            (i, min(MAX_LOGIT_BIAS, max(-MAX_LOGIT_BIAS, float(bias))))
            for i, bias in sorted((params.logit_bias or {}).items())
        ),
        allowed_token_ids=tuple(dict.fromkeys(params.allowed_token_ids or ())),
        logprobs=params.logprobs,
        prompt_logprobs=params.prompt_logprobs,
        pooling=params.pooling or "",
    )

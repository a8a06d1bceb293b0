"""Vectors and scores offline: what is asked of the engine for them, and the outputs they come back as."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from vllm_obs.engine.config import ModelConfig
from vllm_obs.engine.errors import RequestFailedError
from vllm_obs.engine.frontend.input_processor import Prompt
from vllm_obs.engine.frontend.llm_prompts import Prompts, plain_prompts
from vllm_obs.engine.frontend.outputs import RequestOutput
from vllm_obs.engine.messages import Float32Array
from vllm_obs.engine.pooling.params import pooling_params
from vllm_obs.engine.pooling.vectors import check_dimensions, cosines, finished
from vllm_obs.engine.sampling_params import SamplingParams


class EmbedOptions(TypedDict, total=False):
    """How texts are to be embedded.

    `truncate_prompt_tokens` keeps so many of a prompt's first tokens (-1: as many as the model takes).
    `dimensions` cuts the vectors, where the model allows it; `normalize` brings them to length one, by default as
    the model has it.
    """

    truncate_prompt_tokens: int | None
    dimensions: int | None
    normalize: bool | None


@dataclass(frozen=True)
class EmbeddingOutput:
    """One prompt's vector."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """How many numbers it has."""
        return len(self.embedding)


@dataclass(frozen=True)
class EmbeddingRequestOutput:
    """What one prompt of `LLM.embed` gives."""

    request_id: str
    outputs: EmbeddingOutput
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    finished: bool = True


@dataclass(frozen=True)
class ScoringOutput:
    """How alike two texts are: the cosine of their vectors."""

    score: float


@dataclass(frozen=True)
class ScoringRequestOutput:
    """What one pair of `LLM.score` gives; the tokens are those of its second text."""

    request_id: str
    outputs: ScoringOutput
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    finished: bool = True


def embed_params(model: ModelConfig, options: EmbedOptions) -> SamplingParams:
    """What the engine is asked for each prompt. RequestError where the model's vectors cannot be cut so."""
    check_dimensions(options.get("dimensions"), model)
    return pooling_params(model.pooling.kind, options.get("truncate_prompt_tokens"))


def embeddings(
    outputs: Sequence[RequestOutput], model: ModelConfig, options: EmbedOptions
) -> list[EmbeddingRequestOutput]:
    """The finished vectors of these outputs."""
    asked = options.get("normalize")
    normalize = model.pooling.normalize if asked is None else asked
    return [
        EmbeddingRequestOutput(
            output.request_id,
            EmbeddingOutput(finished(_vector(output), normalize, options.get("dimensions")).tolist()),
            output.prompt_token_ids,
            output.num_cached_tokens,
        )
        for output in outputs
    ]


def pairs_to_score(queries: Prompts, documents: Prompts) -> tuple[list[Prompt], int]:
    """All texts that need a vector, and how many of them are queries. ValueError where they make no pairs."""
    first, second = plain_prompts(queries), plain_prompts(documents)
    if not second or len(first) not in (1, len(second)):
        raise ValueError(
            f"There are {len(first)} queries and {len(second)} documents; it is one, or one for each."
        )
    return first + second, len(first)


def scores(outputs: Sequence[RequestOutput], num_queries: int) -> list[ScoringRequestOutput]:
    """The score of each document with its query, or with the only one."""
    vectors = [_vector(output) for output in outputs]
    values = cosines(vectors[:num_queries], vectors[num_queries:])
    return [
        ScoringRequestOutput(
            output.request_id, ScoringOutput(value), output.prompt_token_ids, output.num_cached_tokens
        )
        for output, value in zip(outputs[num_queries:], values, strict=True)
    ]


def _vector(output: RequestOutput) -> Float32Array:
    if output.pooled is None:
        raise RequestFailedError(f"Request {output.request_id} ended without a vector.")
    return output.pooled

"""The bodies of /v1/embeddings, /score and /rerank."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AliasChoices, BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from vllm_obs.server.schema_base import (
    MAX_COUNT,
    MAX_LABEL_CHARS,
    WHOLE,
    Count,
    StrictModel,
    Text,
    Whole,
    truncates,
)
from vllm_obs.server.schema_completion import PROMPT_SCHEMA, check_prompts
from vllm_obs.server.schema_sampling import CacheSalt, Priority
from vllm_obs.server.schema_template import TemplateRequest

MAX_INPUTS = 2048
"""What one request may bring: inputs of /v1/embeddings, texts on one side of /score, documents of /rerank."""


def _check_number(values: list[Any]) -> list[Any]:
    if len(values) > MAX_INPUTS:
        raise PydanticCustomError(
            "too_many_sequences",
            "has {number} entries; at most {limit} may be",
            {"number": len(values), "limit": MAX_INPUTS},
        )
    return values


def _check_inputs(value: Any) -> Any:
    return _check_number(check_prompts(value))


def _exclude(value: Any) -> Any:
    raise PydanticCustomError("input", "excludes messages: only one of them can be embedded")


def _check_texts(value: Any) -> Any:
    """One text or several, as a list."""
    texts = value if type(value) is list else [value]
    if not all(type(text) is str for text in texts):
        raise PydanticCustomError("texts", "should be a string or a list of strings")
    if not texts or not all(texts):
        raise PydanticCustomError("empty_prompt", "should not be empty")
    return _check_number(texts)


def _check_query(value: Any) -> Any:
    if value == "":
        raise PydanticCustomError("empty_prompt", "should not be empty")
    return value


def _check_documents(value: Any) -> Any:
    """Each document as its text: it is one, or an object that has one."""
    if type(value) is not list:
        raise PydanticCustomError("documents", "should be a list")
    return _check_texts([document.get("text") if type(document) is dict else document for document in value])


Texts = Annotated[
    list[str],
    BeforeValidator(_check_texts),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
DOCUMENT_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    ]
}


class PoolingRequest(StrictModel):
    """What is common to all that is done with vectors of texts. A null field is a field left out."""

    model: Annotated[str, Field(min_length=1, max_length=MAX_LABEL_CHARS)] | None = None
    user: Text | None = None
    request_id: Text | None = None
    truncate_prompt_tokens: Whole | None = None
    truncation_side: truncates("right") = None  # type: ignore[valid-type]
    add_special_tokens: bool = True
    priority: Priority = 0
    cache_salt: CacheSalt | None = None


class AnyEmbeddingRequest(PoolingRequest):
    """How vectors are wanted. `normalize` is the model's own unless it is given."""

    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Count | None = None
    normalize: bool | None = Field(default=None, validation_alias=AliasChoices("normalize", "use_activation"))


class EmbeddingRequest(AnyEmbeddingRequest):
    """Texts (or token ids) in, a vector of each out."""

    input: Annotated[list[Any], BeforeValidator(_check_inputs), WithJsonSchema(PROMPT_SCHEMA)] = Field(
        default=[], validate_default=True
    )


class EmbeddingChatRequest(AnyEmbeddingRequest, TemplateRequest):
    """A conversation in, the vector of the prompt that the chat template makes of it out."""

    input: Annotated[None, BeforeValidator(_exclude)] = None
    add_generation_prompt: bool = False
    add_special_tokens: bool = False


class ScoreRequest(PoolingRequest):
    """How alike texts are: one against all of `text_2`, or as many of each side pair by pair."""

    served_fields: ClassVar[frozenset[str]] = frozenset({"documents"})

    text_1: Texts = Field(validation_alias=AliasChoices("text_1", "data_1", "queries"))
    text_2: Texts = Field(validation_alias=AliasChoices("text_2", "data_2", "documents", "items"))


class RerankRequest(PoolingRequest):
    """Documents in the order in which they are like the query; `top_n` 0 is all of them."""

    served_fields: ClassVar[frozenset[str]] = frozenset({"documents"})

    query: Annotated[str, BeforeValidator(_check_query)]
    documents: Annotated[
        list[str],
        BeforeValidator(_check_documents),
        WithJsonSchema({"type": "array", "items": DOCUMENT_SCHEMA}),
    ]
    top_n: Annotated[int, Field(ge=0, le=MAX_COUNT), WHOLE] = 0
    return_documents: bool = True

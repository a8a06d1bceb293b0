"""As `reply_models`: the replies about vectors, responses, messages of Anthropic's API, and the server itself."""

from typing import Any, Literal

from vllm_obs.server.reply_models import OpenReply, Reply


class EmbeddingRow(Reply):
    """A vector: numbers, or the base64 of float32, the lowest byte first."""

    index: int
    object: Literal["embedding"]
    embedding: list[float] | str


class EmbeddingReply(Reply):
    """The reply of /v1/embeddings."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[EmbeddingRow]
    usage: dict[str, Any]


class ScoreRow(Reply):
    """How alike two texts are."""

    index: int
    object: Literal["score"]
    score: float


class ScoreReply(Reply):
    """The reply of /score."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[ScoreRow]
    usage: dict[str, Any]


class RerankReply(Reply):
    """The reply of /rerank, the best documents first."""

    id: str
    model: str
    usage: dict[str, Any]
    results: list[dict[str, Any]]


class ResponseReply(OpenReply):
    """A response of /v1/responses, as OpenAI and Open Responses define it."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "failed", "in_progress", "cancelled", "queued", "incomplete"]
    model: str
    output: list[dict[str, Any]]
    usage: dict[str, Any] | None


class InputTokensReply(Reply):
    """How many tokens the input of a response has."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class ItemList(OpenReply):
    """A page of the items a response was made from."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    has_more: bool


class DeletedResponse(Reply):
    """The reply to DELETE."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class AnthropicMessage(OpenReply):
    """The reply of /v1/messages, as Anthropic defines it."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    content: list[dict[str, Any]]
    model: str
    stop_reason: str | None
    stop_sequence: str | None
    usage: dict[str, Any]


class CountTokensReply(Reply):
    """How many tokens a conversation has."""

    input_tokens: int


class StatusReply(Reply):
    """What the server is doing."""

    status: Literal["loading", "ready", "stalled", "draining", "dead"]


class VersionReply(Reply):
    """The version of this server."""

    version: str

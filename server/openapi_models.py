"""The models of the OpenAPI document: every body, every reply, and which route answers with which.

Imported when the document is asked for: what a reply looks like is told, not checked, so serving does without.
"""

from typing import Any, Literal

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from vllm_obs.server import reply_models as replies
from vllm_obs.server import reply_models_resources as resources
from vllm_obs.server.schema_chat import ChatCompletionRequest
from vllm_obs.server.schema_chat_batch import BatchChatRequest
from vllm_obs.server.schema_completion import CompletionRequest
from vllm_obs.server.schema_embeddings import EmbeddingChatRequest, EmbeddingRequest, RerankRequest, ScoreRequest
from vllm_obs.server.schema_messages import CountTokensRequest, MessagesRequest
from vllm_obs.server.schema_responses import ResponsesRequest
from vllm_obs.server.schema_tokenize import DetokenizeRequest, TokenizeChatRequest, TokenizeRequest


class ErrorDetail(BaseModel):
    """What went wrong: `code` is the HTTP status, `reason` one of a closed set of words."""

    message: str
    type: str
    param: str | None
    code: int
    reason: str


class ErrorReply(BaseModel):
    """The body of every reply that is not 2xx, and of a stream's last event when it fails."""

    error: ErrorDetail


class AnthropicErrorReply(ErrorReply):
    """The same, with the type that clients of Anthropic's API look for."""

    type: Literal["error"]


BODIES: tuple[type[BaseModel], ...] = (
    CompletionRequest,
    ChatCompletionRequest,
    BatchChatRequest,
    MessagesRequest,
    CountTokensRequest,
    ResponsesRequest,
    EmbeddingRequest,
    EmbeddingChatRequest,
    ScoreRequest,
    RerankRequest,
    TokenizeRequest,
    TokenizeChatRequest,
    DetokenizeRequest,
    ErrorReply,
    AnthropicErrorReply,
)

REPLIES: dict[str, type[BaseModel]] = {
    "post /v1/completions": replies.CompletionReply,
    "post /v1/completions/render": replies.RenderedPrompt,
    "post /v1/chat/completions": replies.ChatCompletionReply,
    "post /v1/chat/completions/batch": replies.ChatCompletionReply,
    "post /v1/chat/completions/render": replies.RenderedPrompt,
    "post /v1/messages": resources.AnthropicMessage,
    "post /v1/messages/count_tokens": resources.CountTokensReply,
    "post /v1/responses": resources.ResponseReply,
    "post /v1/responses/input_tokens": resources.InputTokensReply,
    "get /v1/responses/{response_id}": resources.ResponseReply,
    "delete /v1/responses/{response_id}": resources.DeletedResponse,
    "post /v1/responses/{response_id}/cancel": resources.ResponseReply,
    "get /v1/responses/{response_id}/input_items": resources.ItemList,
    "post /v1/embeddings": resources.EmbeddingReply,
    "post /score": resources.ScoreReply,
    "post /v1/score": resources.ScoreReply,
    "post /rerank": resources.RerankReply,
    "post /v1/rerank": resources.RerankReply,
    "post /v2/rerank": resources.RerankReply,
    "get /v1/models": replies.ModelList,
    "get /v1/models/{model_id}": replies.ModelCard,
    "post /tokenize": replies.TokenizeReply,
    "post /detokenize": replies.DetokenizeReply,
    "get /livez": resources.StatusReply,
    "get /readyz": resources.StatusReply,
    "get /startupz": resources.StatusReply,
    "get /version": resources.VersionReply,
}
"""The JSON that a route answers with when all goes well; the others answer with something else, or nothing."""

LISTS = frozenset({"post /v1/completions/render"})
"""Routes whose reply is a list of those."""


def schemas(template: str) -> dict[str, Any]:
    """The JSON Schema of each model by its name; `template` is how one refers to another."""
    mode: Literal["validation"] = "validation"
    models = dict.fromkeys([*BODIES, *REPLIES.values()])
    _, definitions = models_json_schema([(model, mode) for model in models], ref_template=template)
    found: dict[str, Any] = definitions["$defs"]
    return found

"""The OpenAPI document: bodies are read by hand, so their schemas are put in by hand, from the same models."""

from typing import Any, Literal

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from vllm_obs.server import reply_models as replies
from vllm_obs.server import reply_models_resources as resources
from vllm_obs.server.anthropic_paths import PATHS as ANTHROPIC_PATHS
from vllm_obs.server.public_paths import PROBES
from vllm_obs.server.schema_chat import ChatCompletionRequest
from vllm_obs.server.schema_chat_batch import BatchChatRequest
from vllm_obs.server.schema_completion import CompletionRequest
from vllm_obs.server.schema_embeddings import EmbeddingRequest, RerankRequest, ScoreRequest
from vllm_obs.server.schema_messages import CountTokensRequest, MessagesRequest
from vllm_obs.server.schema_responses import ResponsesRequest
from vllm_obs.server.schema_tokenize import DetokenizeRequest, TokenizeChatRequest, TokenizeRequest

REFERENCE = "#/components/schemas/{model}"
ERROR_STATUSES = (400, 401, 403, 404, 405, 408, 413, 414, 415, 429, 431, 500, 503, 504)


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


def describe(*bodies: type[BaseModel], streams: bool = False) -> dict[str, Any]:
    """The keyword arguments of a route that reads one of `bodies` and may answer with a stream of events."""
    schemas = [{"$ref": REFERENCE.format(model=body.__name__)} for body in bodies]
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    success: dict[str, Any] = {"description": "The reply", "content": {"application/json": {"schema": {}}}}
    if streams:
        success["content"]["text/event-stream"] = {"schema": {"type": "string"}}
    return {
        "openapi_extra": {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}},
        "responses": {200: success, **errors()},
    }


def errors() -> dict[int | str, dict[str, Any]]:
    """The error replies of a route."""
    return {status: _error("ErrorReply") for status in ERROR_STATUSES}


def install_openapi(app: FastAPI) -> None:
    """Make the app's document once, with the schemas its routes refer to."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
            components = app.openapi_schema.setdefault("components", {})
            components["schemas"] = _schemas()
            components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
            for path, operations in app.openapi_schema["paths"].items():
                for method, operation in operations.items():
                    _complete(f"{method} {path}", operation)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _complete(name: str, operation: dict[str, Any]) -> None:
    """Put in what a route of this name ("get /version") answers, and whether it needs a key."""
    path = name.partition(" ")[2]
    answers = operation["responses"]
    answers.pop("422", None)  # FastAPI's own: here it is a 400
    error = "AnthropicErrorReply" if path in ANTHROPIC_PATHS else "ErrorReply"
    answers.update({str(status): _error(error) for status in _error_statuses(path, answers)})
    content = answers["200"].setdefault("content", {})
    if name in REPLIES:
        reply = {"$ref": REFERENCE.format(model=REPLIES[name].__name__)}
        content["application/json"] = {"schema": {"type": "array", "items": reply} if name in LISTS else reply}
    elif path == "/metrics":
        answers["200"]["content"] = {"text/plain": {"schema": {"type": "string"}}}
    elif path in PROBES:
        answers["200"].pop("content")
    if path not in PROBES | {"/metrics"}:
        operation["security"] = [{"key": []}, {}]


def _error_statuses(path: str, answers: dict[str, Any]) -> list[int]:
    """Those that the route names, or all that may come from the layers around it."""
    if path in PROBES or path == "/metrics":
        return [405, 500, 503]
    return [int(status) for status in answers if status != "200"] or list(ERROR_STATUSES)


def _error(model: str) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": REFERENCE.format(model=model)}}}
    return {"description": "An error", "content": content}


def _schemas() -> dict[str, Any]:
    mode: Literal["validation"] = "validation"
    models = dict.fromkeys([*BODIES, *REPLIES.values()])
    _, definitions = models_json_schema([(model, mode) for model in models], ref_template=REFERENCE)
    schemas: dict[str, Any] = definitions["$defs"]
    return schemas

"""The OpenAPI document: bodies are read by hand, so their schemas are put in by hand, from the same models."""

from typing import Any, Literal

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from vllm_obs.server.schema_chat import ChatCompletionRequest
from vllm_obs.server.schema_completion import CompletionRequest
from vllm_obs.server.schema_embeddings import EmbeddingRequest, RerankRequest, ScoreRequest
from vllm_obs.server.schema_messages import CountTokensRequest, MessagesRequest
from vllm_obs.server.schema_responses import ResponsesRequest
from vllm_obs.server.schema_tokenize import DetokenizeRequest, TokenizeChatRequest, TokenizeRequest

REFERENCE = "#/components/schemas/{model}"
ERROR_STATUSES = (400, 401, 404, 405, 408, 413, 415, 429, 500, 503)


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


BODIES: tuple[type[BaseModel], ...] = (
    CompletionRequest,
    ChatCompletionRequest,
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
)


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
    content = {"application/json": {"schema": {"$ref": REFERENCE.format(model="ErrorReply")}}}
    return {status: {"description": "An error", "content": content} for status in ERROR_STATUSES}


def install_openapi(app: FastAPI) -> None:
    """Make the app's document once, with the schemas its routes refer to."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
            app.openapi_schema.setdefault("components", {})["schemas"] = _schemas()
            for operations in app.openapi_schema["paths"].values():
                for operation in operations.values():
                    operation["responses"].pop("422", None)  # FastAPI's own: here it is a 400
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _schemas() -> dict[str, Any]:
    mode: Literal["validation"] = "validation"
    _, definitions = models_json_schema([(body, mode) for body in BODIES], ref_template=REFERENCE)
    schemas: dict[str, Any] = definitions["$defs"]
    return schemas

"""The OpenAPI document: bodies are read by hand, so their schemas are put in by hand, from the same models."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from vllm_obs.server.anthropic_paths import PATHS as ANTHROPIC_PATHS
from vllm_obs.server.public_paths import PROBES

REFERENCE = "#/components/schemas/{model}"
ERROR_STATUSES = (400, 401, 403, 404, 405, 408, 413, 414, 415, 429, 431, 500, 503, 504)


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
            # Imported here: the models take a while to be made, and few ask for the document.
            from vllm_obs.server.openapi_models import schemas

            app.openapi_schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
            components = app.openapi_schema.setdefault("components", {})
            components["schemas"] = schemas(REFERENCE)
            components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
            for path, operations in app.openapi_schema["paths"].items():
                for method, operation in operations.items():
                    _complete(f"{method} {path}", operation)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _complete(name: str, operation: dict[str, Any]) -> None:
    """Put in what a route of this name ("get /version") answers, and whether it needs a key."""
    from vllm_obs.server.openapi_models import LISTS, REPLIES

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

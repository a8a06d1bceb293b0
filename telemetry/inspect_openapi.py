"""The inspector's OpenAPI document, made from its routes; loaded when somebody asks for it."""

from collections.abc import Iterable
from typing import Any

from vllm_obs.telemetry.inspect_parameters import Parameter, parameters_in
from vllm_obs.telemetry.inspect_router import Route

_KINDS: dict[type, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}


def openapi_document(title: str, version: str, description: str, routes: Iterable[Route]) -> dict[str, Any]:
    """All of it, as plain values."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.shown_path, {})[route.method.lower()] = _operation(route)
    info = {"title": title, "description": description, "version": version}
    return {"openapi": "3.1.0", "info": info, "paths": paths}


def _operation(route: Route) -> dict[str, Any]:
    parameters = [_shown(route, each) for each in parameters_in(route.wanted)]
    responses = {"200": {"description": "what was asked for"}}
    if parameters:
        responses["422"] = {"description": "a parameter that is none, in the error shape of the API server"}
    named = {"parameters": parameters} if parameters else {}
    name = f"{route.handler.__name__}_{route.method.lower()}"
    return {"summary": route.summary, "operationId": name, **named, **route.extra, "responses": responses}


def _shown(route: Route, parameter: Parameter) -> dict[str, Any]:
    is_in_path = f"{{{parameter.name}}}" in route.shown_path
    shown: dict[str, Any] = {
        "name": parameter.name,
        "in": "path" if is_in_path else "query",
        "required": parameter.is_required,
        "schema": _schema(parameter),
    }
    return shown | ({"description": parameter.bounds.description} if parameter.bounds.description else {})


def _schema(parameter: Parameter) -> dict[str, Any]:
    bounds = parameter.bounds
    schema: dict[str, Any] = {"type": _KINDS[parameter.kind]}
    limits = {
        "enum": list(parameter.choices) or None,
        "minimum": bounds.ge,
        "maximum": bounds.le,
        "maxLength": bounds.max_length,
        "default": None if parameter.is_required else parameter.default,
    }
    return schema | {name: value for name, value in limits.items() if value is not None}

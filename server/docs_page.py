"""/docs: the OpenAPI document as one page that needs no script and nothing from elsewhere."""

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from fastapi import FastAPI
from starlette.responses import HTMLResponse, Response

PATHS = ("/docs", "/redoc")

_HEADERS = {"content-security-policy": "default-src 'none'", "x-content-type-options": "nosniff"}
_MAX_TYPE_CHARS = 120


def add_docs(app: FastAPI) -> None:
    """Answer the paths with the page, made once from the application's own document."""
    pages: list[str] = []

    async def docs() -> Response:
        """Every route with its fields."""
        if not pages:
            pages.append(docs_page(app.openapi()))
        return HTMLResponse(pages[0], headers=_HEADERS)

    for path in PATHS:
        app.get(path, include_in_schema=False)(docs)


def docs_page(document: Mapping[str, Any]) -> str:
    """The HTML of an OpenAPI document: routes with their bodies, then the objects these refer to."""
    title = escape(f"{document['info']['title']} {document['info']['version']}")
    schemas = document.get("components", {}).get("schemas", {})
    return "\n".join(
        [
            f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{title}</title>',
            f'<h1>{title}</h1>\n<p>All of this for programs: <a href="openapi.json">openapi.json</a>.</p>',
            *(_route(method, path, operation) for method, path, operation in _operations(document)),
            "<h2>Objects</h2>",
            *(_object(name, schema) for name, schema in sorted(schemas.items())),
            "</html>\n",
        ]
    )


def _operations(document: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield method.upper(), path, operation


def _route(method: str, path: str, operation: Mapping[str, Any]) -> str:
    lines = [f"<h2>{method} {escape(path)}</h2>", f"<p>{escape(operation.get('description', ''))}</p>", "<ul>"]
    for parameter in operation.get("parameters", ()):
        lines.append(
            f"<li>{parameter['in']} <b>{escape(parameter['name'])}</b>: {_type(parameter['schema'])}</li>"
        )
    if "requestBody" in operation:
        lines.append(f"<li>body: {_content(operation['requestBody'])}</li>")
    for status, answer in operation["responses"].items():
        if status == "200":
            lines.append(f"<li>200: {_content(answer) or 'nothing'}</li>")
    errors = ", ".join(status for status in operation["responses"] if status != "200")
    return "\n".join([*lines, f"<li>errors: {errors}</li>", "</ul>"])


def _content(holder: Mapping[str, Any]) -> str:
    kinds = holder.get("content", {}).items()
    return "; ".join(f"{escape(kind)} {_type(media.get('schema', {}))}" for kind, media in kinds)


def _object(name: str, schema: Mapping[str, Any]) -> str:
    required = schema.get("required", ())
    rows = (
        f"<tr><td>{escape(field)}</td><td>{_type(about)}</td><td>{_default(field, about, required)}</td></tr>"
        for field, about in schema.get("properties", {}).items()
    )
    heading = f'<h3 id="{escape(name)}">{escape(name)}</h3>\n<p>{escape(schema.get("description", ""))}</p>'
    return "\n".join([heading, "<table>", *rows, "</table>"])


def _default(field: str, about: Mapping[str, Any], required: Any) -> str:
    return "required" if field in required else escape(str(about.get("default", "")))


def _type(schema: Mapping[str, Any]) -> str:
    """A schema in a few words, with links to the objects it names."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(map(_type, choices)))
    if "enum" in schema or "const" in schema:
        values = ", ".join(map(repr, schema.get("enum", [schema.get("const")])))
        return escape(values[:_MAX_TYPE_CHARS])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return escape(str(schema.get("type", "any")))

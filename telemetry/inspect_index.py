"""The inspector's page for people who open its address: every endpoint with what it says, and no script."""

import re
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from vllm_obs.telemetry.inspect_reply import Reply

_HEADERS = {"content-security-policy": "default-src 'none'", "x-content-type-options": "nosniff"}


def index_reply(document: Mapping[str, Any]) -> Reply:
    """The page, made from the application's own OpenAPI document."""
    return Reply(index_page(document).encode(), "text/html; charset=utf-8", headers=_HEADERS)


def index_page(document: Mapping[str, Any]) -> str:
    """The HTML of an OpenAPI document. What a GET without parameters in its path answers can be clicked."""
    title = escape(document["info"]["title"])
    paragraphs = (_words(text) for text in document["info"].get("description", "").split("\n\n"))
    rows = (_row(*endpoint) for endpoint in _endpoints(document))
    return "\n".join(
        [
            f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{title}</title>',
            f"<h1>{title} {escape(document['info']['version'])}</h1>",
            *(f"<p>{paragraph}</p>" for paragraph in paragraphs),
            '<p><a href="/openapi.json">/openapi.json</a> describes all parameters. '
            "<code>vllm-obs dashboard</code> shows all of it in pages.</p>",
            "<table>",
            *rows,
            "</table>\n</html>\n",
        ]
    )


def _endpoints(document: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, endpoint in methods.items():
            yield method.upper(), path, endpoint


def _row(method: str, path: str, endpoint: Mapping[str, Any]) -> str:
    shown = escape(path)
    if method == "GET" and "{" not in path:
        shown = f'<a href="{shown}">{shown}</a>'
    names = ", ".join(
        parameter["name"] for parameter in endpoint.get("parameters", ()) if parameter["in"] == "query"
    )
    cells = (escape(method), shown, _words(endpoint.get("summary", "")), escape(names))
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _words(text: str) -> str:
    """HTML of a text in which names stand in backticks."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))

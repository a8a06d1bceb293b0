"""The OpenAPI document and its page: every route with what it takes and answers, and nothing from elsewhere."""

import asyncio
import re
import subprocess
import sys
from typing import Any

import httpx
from fake_engine import FakeEngine
from http_app import served

from vllm_obs.server.config import ServerConfig
from vllm_obs.server.docs_page import docs_page
from vllm_obs.server.profile_config import ProfilerConfig


def get(path: str, server: ServerConfig | None = None) -> httpx.Response:
    async def scenario() -> httpx.Response:
        async with served(FakeEngine(lambda request: [2]), server) as app:
            return await app.client.get(path)

    return asyncio.run(scenario())


def operations(document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    paths = document["paths"]
    return [(f"{method} {path}", paths[path][method]) for path in paths for method in paths[path]]


def test_every_route_says_what_it_answers_and_how_it_fails() -> None:
    for name, operation in operations(get("/openapi.json").json()):
        answers = operation["responses"]
        assert {"405", "500", "503"} <= answers.keys(), name
        assert "422" not in answers, name
        media = answers["200"].get("content", {}).get("application/json", {"schema": {"$ref": ""}})
        empty = ("post /v1/responses/compact", "post /start_profile", "post /stop_profile")
        assert media["schema"] or name in empty, name
        assert operation["description"] and operation["summary"], name  # noqa: PT018


def test_every_route_that_reads_a_body_has_its_schema() -> None:
    document = get("/openapi.json").json()
    bodies = {
        name: operation["requestBody"]["content"]["application/json"]["schema"]
        for name, operation in operations(document)
        if "requestBody" in operation
    }
    assert len(bodies) == 17
    assert bodies["post /v1/chat/completions/render"] == {"$ref": "#/components/schemas/ChatCompletionRequest"}


def test_keys_are_asked_for_where_they_are_needed() -> None:
    document = get("/openapi.json").json()
    open_to_all = {name for name, operation in operations(document) if "security" not in operation}
    probes = ("/health", "/ping", "/livez", "/readyz", "/startupz", "/metrics")
    assert open_to_all == {*(f"get {path}" for path in probes), "post /ping"}


def test_errors_of_anthropics_routes_have_their_type_outside() -> None:
    document = get("/openapi.json").json()
    answer = document["paths"]["/v1/messages"]["post"]["responses"]["400"]
    assert answer["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/AnthropicErrorReply"}


def test_routes_of_an_open_profiler_are_described_too() -> None:
    server = ServerConfig(profiler_config=ProfilerConfig(is_open=True))
    document = get("/openapi.json", server).json()
    assert {"405", "500", "503"} <= document["paths"]["/start_profile"]["post"]["responses"].keys()


def test_page_shows_every_route_and_loads_nothing() -> None:
    reply = get("/docs")
    document = get("/openapi.json").json()
    assert reply.headers["content-security-policy"] == "default-src 'none'"
    assert not re.search(r"<script|<link|<img|src=|https?://", reply.text)
    for path in document["paths"]:
        assert path in reply.text
    for name in re.findall(r'href="#([^"]*)"', reply.text):
        assert f'id="{name}"' in reply.text
    assert get("/redoc").text == reply.text


def test_page_escapes_what_the_document_says() -> None:
    operation = {"description": "<b>", "responses": {"200": {}}, "parameters": []}
    page = docs_page({"info": {"title": "<t>", "version": "1"}, "paths": {"/<p>": {"get": operation}}})
    assert "<b></p>" not in page
    assert "&lt;b&gt;" in page
    assert "<t>" not in page
    assert "/<p>" not in page


def test_a_start_makes_no_models_that_only_the_document_needs() -> None:
    script = (
        "import sys, vllm_obs.server.lifecycle\n"
        "from vllm_obs.server.schema_messages import MessagesRequest\n"
        "print('vllm_obs.server.openapi_models' in sys.modules, MessagesRequest.__pydantic_complete__)\n"
        "print(MessagesRequest(model='m', max_tokens=1, messages=[{'role': 'user', 'content': 'H'}]).max_tokens)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["False", "False", "1"]

"""/v1/responses over a fake engine that says one text after the other: JSON, events, and the official client."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from fake_engine import FakeEngine
from http_app import MODEL, Served, served, tokenizer
from openai import AsyncOpenAI

from vllm_obs.engine.messages import EngineCoreRequest
from vllm_obs.server.config import ServerConfig

PATH = "/v1/responses"
HI: dict[str, Any] = {"model": MODEL, "input": "Hi"}
TOOLS = ServerConfig(enable_auto_tool_choice=True, tool_call_parser="hermes")


def saying(*texts: str) -> FakeEngine:
    """An engine whose answers are these texts, the last one again and again."""
    num_asked = 0

    def script(request: EngineCoreRequest) -> list[int]:
        nonlocal num_asked
        text = texts[min(num_asked, len(texts) - 1)]
        num_asked += 1
        return [*tokenizer().encode(text, add_special_tokens=False), 2]

    return FakeEngine(script)


@asynccontextmanager
async def asked_by_openai(
    engine: FakeEngine, server: ServerConfig | None = None, key: str = "none"
) -> AsyncIterator[tuple[AsyncOpenAI, Served]]:
    """The official client, talking to the application."""
    async with served(engine, server) as app, client_of(app, key) as client:
        yield client, app


@asynccontextmanager
async def client_of(app: Served, key: str = "none") -> AsyncIterator[AsyncOpenAI]:
    """The official client with a key."""
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app.app)) as transport:
        yield AsyncOpenAI(base_url="http://test/v1", api_key=key, http_client=transport, max_retries=0)


def events_of(text: str) -> list[dict[str, Any]]:
    """The events of a stream, whose lines are looked at."""
    events = []
    for block in text.strip().split("\n\n"):
        kind, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert kind == "event: " + events[-1]["type"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def without_ids(value: Any) -> Any:
    """The same, without what is new each time."""
    if isinstance(value, dict):
        new = ("id", "call_id", "item_id", "created_at", "completed_at", "sequence_number")
        return {name: without_ids(field) for name, field in value.items() if name not in new}
    return [without_ids(entry) for entry in value] if isinstance(value, list) else value


def prompt_of(request: EngineCoreRequest) -> str:
    """What the engine was asked, as text."""
    return tokenizer().decode([int(token) for token in request.prompt_token_ids], skip_special_tokens=False)

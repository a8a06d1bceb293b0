"""A `request_id` in a body is a label as X-Request-Id is: cleaned, it comes back, unless a header says another."""

from typing import Any

import pytest
from fake_engine import FakeEngine
from http_app import MODEL, served
from in_loop import in_loop

HI = {"messages": [{"role": "user", "content": "Hi"}]}
ROUTES: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/chat/completions", {**HI, "max_tokens": 1}, "chatcmpl-"),
    ("/v1/completions", {"prompt": "Hi", "max_tokens": 1}, "cmpl-"),
    ("/v1/embeddings", {"input": "Hi"}, "embd-"),
    ("/score", {"text_1": "Hi", "text_2": "Ho"}, "score-"),
    ("/rerank", {"query": "Hi", "documents": ["Ho"]}, "rerank-"),
]


@pytest.mark.parametrize(("path", "body", "prefix"), ROUTES)
@in_loop
async def test_it_names_the_reply_unless_a_header_does(path: str, body: dict[str, Any], prefix: str) -> None:
    async with served(FakeEngine(lambda request: [30])) as app:
        named = await app.post(path, {**body, "request_id": "mine-1"})
        assert (named.json()["id"], named.headers["x-request-id"]) == (prefix + "mine-1", "mine-1")
        both = await app.post(path, {**body, "request_id": "mine-1"}, **{"x-request-id": "theirs"})
        assert (both.json()["id"], both.headers["x-request-id"]) == (prefix + "theirs", "theirs")
        dirty = await app.post(path, {**body, "request_id": "a\r\nb\u00e9" + "x" * 500})
        assert dirty.json()["id"] == prefix + "ab" + "x" * 126


@in_loop
async def test_a_stream_has_it_and_the_id_of_a_kept_response_stays_ours() -> None:
    async with served(FakeEngine(lambda request: [30, 2])) as app:
        body = {**HI, "max_tokens": 2, "stream": True, "request_id": "mine"}
        reply = await app.post("/v1/chat/completions", body)
        assert '"id":"chatcmpl-mine"' in reply.text
        assert reply.headers["x-request-id"] == "mine"
        kept = await app.post("/v1/responses", {"model": MODEL, "input": "Hi", "request_id": "resp_mine"})
        assert kept.json()["id"] != "resp_mine"
        wrong = await app.post("/v1/completions", {"prompt": "Hi", "request_id": 5})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "request_id")

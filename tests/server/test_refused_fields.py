"""Fields of the APIs' bodies that would change an answer and are not served: refused by name."""

from typing import Any

import pytest
from fake_engine import FakeEngine
from http_app import MODEL, served
from in_loop import in_loop

CHAT, TEXT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
EMBEDDINGS, SCORE, RERANK = "/v1/embeddings", "/score", "/rerank"
HI = {"messages": [{"role": "user", "content": "Hi"}]}
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {**HI, "max_tokens": 1},
    TEXT: {"prompt": "Hi", "max_tokens": 1},
    RESPONSES: {"input": "Hi", "max_output_tokens": 1},
    MESSAGES: {**HI, "max_tokens": 1},
    EMBEDDINGS: {"input": "Hi"},
    SCORE: {"text_1": "Hi", "text_2": "Ho"},
    RERANK: {"query": "Hi", "documents": ["Ho"]},
}
GENERATES = (CHAT, TEXT, RESPONSES)


@pytest.mark.parametrize(
    ("path", "name", "value"),
    [
        *((path, "thinking_token_budget", 16) for path in GENERATES),
        *((path, "watermarking", True) for path in GENERATES),
        *((path, "logprob_token_ids", [1]) for path in GENERATES),
        *((path, "repetition_detection", {"max_pattern_size": 4}) for path in GENERATES),
        *((path, "truncation_side", "right") for path in (CHAT, TEXT)),
        *((path, "guided_whitespace_pattern", "x") for path in GENERATES),
        *((path, "moderation", {"model": "x"}) for path in (CHAT, RESPONSES)),
        (CHAT, "web_search_options", {}),
        (CHAT, "best_of", 2),
        (TEXT, "return_token_offsets", True),
        (RESPONSES, "previous_input_messages", [{}]),
        (RESPONSES, "enable_response_messages", True),
        (RESPONSES, "prompt_cache_options", {"prewarm": True}),
        (RESPONSES, "reasoning", {"mode": "pro"}),
        (RESPONSES, "reasoning", {"context": "current_turn"}),
        (MESSAGES, "compaction", {"type": "x"}),
        (MESSAGES, "thread", {"type": "x"}),
        (EMBEDDINGS, "embed_dtype", "float16"),
        (EMBEDDINGS, "endianness", "big"),
        (EMBEDDINGS, "truncation_side", "left"),
        (SCORE, "max_tokens_per_query", 4),
        (RERANK, "max_tokens_per_doc", 4),
    ],
)
@in_loop
async def test_what_would_change_the_answer_is_refused(path: str, name: str, value: Any) -> None:
    engine = FakeEngine(lambda request: [30])
    async with served(engine) as app:
        reply = await app.post(path, {"model": MODEL, **BODIES[path], name: value})
        error = reply.json()["error"]
        assert (reply.status_code, error["reason"], engine.added) == (400, "unsupported", [])
        assert error["param"].split(".")[0] == name


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"thinking_token_budget": -1, "watermarking": False, "truncation_side": "left", "best_of": 1}),
        (CHAT, {"metadata": {"a": "b"}, "store": True, "prediction": {"type": "content", "content": "x"}}),
        (CHAT, {"service_tier": "auto", "prompt_cache_key": "x", "prompt_cache_options": {"ttl": "30m"}}),
        (CHAT, {"session_id": "x", "stream_interval": 4, "length_penalty": 2.0}),
        (TEXT, {"return_token_offsets": False, "truncation_side": None}),
        (RESPONSES, {"prompt_cache_options": {"prewarm": False}, "background_options": {}, "access_programs": {}}),
        (
            RESPONSES,
            {"reasoning": {"mode": "standard", "context": "auto"}, "text": {"format": None, "verbosity": None}},
        ),
        (RESPONSES, {"model": None, "tools": None, "tool_choice": None}),
        (CHAT, {"stream_options": {"include_usage": None}, "structured_outputs": {"regex": "a", "json": None}}),
        (MESSAGES, {"cache_control": {"type": "ephemeral"}, "speed": "fast", "context_management": {"edits": []}}),
        (EMBEDDINGS, {"embed_dtype": "float32", "endianness": "little", "truncation_side": "right"}),
        (SCORE, {"max_tokens_per_query": 0}),
    ],
)
@in_loop
async def test_what_would_not_is_taken(path: str, fields: dict[str, Any]) -> None:
    async with served(FakeEngine(lambda request: [30])) as app:
        reply = await app.post(path, {"model": MODEL, **BODIES[path], **fields})
        assert reply.status_code == 200, reply.text

"""Every route that takes a body, with one that it serves, and the short ways to make a hostile case of it."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from hostile_exchange import Case
from serving import MODEL

TEXT = "/v1/completions"
CHAT = "/v1/chat/completions"
BATCH = "/v1/chat/completions/batch"
MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
EMBEDDINGS = "/v1/embeddings"
TOKENIZE = "/tokenize"
DETOKENIZE = "/detokenize"
SCORE = "/score"
RERANK = "/rerank"

HI = {"role": "user", "content": "Hi"}
PING = {"name": "ping", "parameters": {"type": "object"}}

VALID: dict[str, dict[str, Any]] = {
    TEXT: {"prompt": "Hi", "max_tokens": 1},
    "/v1/completions/render": {"prompt": "Hi", "max_tokens": 1},
    CHAT: {"messages": [HI], "max_tokens": 1},
    "/v1/chat/completions/render": {"messages": [HI], "max_tokens": 1},
    BATCH: {"messages": [[HI]], "max_tokens": 1},
    MESSAGES: {"messages": [HI], "max_tokens": 1, "model": MODEL},
    "/v1/messages/count_tokens": {"messages": [HI], "model": MODEL},
    RESPONSES: {"input": "Hi", "max_output_tokens": 1, "model": MODEL, "store": False},
    "/v1/responses/input_tokens": {"input": "Hi", "model": MODEL},
    EMBEDDINGS: {"input": "Hi"},
    SCORE: {"text_1": "Hi", "text_2": "Ho"},
    "/v1/score": {"text_1": "Hi", "text_2": "Ho"},
    RERANK: {"query": "Hi", "documents": ["Ho"]},
    "/v1/rerank": {"query": "Hi", "documents": ["Ho"]},
    "/v2/rerank": {"query": "Hi", "documents": ["Ho"]},
    TOKENIZE: {"prompt": "Hi"},
    DETOKENIZE: {"tokens": [504]},
}

PROMPTS = {
    TEXT: "prompt",
    "/v1/completions/render": "prompt",
    CHAT: "messages",
    "/v1/chat/completions/render": "messages",
    BATCH: "messages",
    MESSAGES: "messages",
    "/v1/messages/count_tokens": "messages",
    RESPONSES: "input",
    "/v1/responses/input_tokens": "input",
    EMBEDDINGS: "input",
    SCORE: "text_1",
    RERANK: "query",
}
"""The field in which each brings its text."""

DISTINCT = (TEXT, CHAT, BATCH, MESSAGES, RESPONSES, EMBEDDINGS, SCORE, RERANK, TOKENIZE, DETOKENIZE)
"""One for each kind of body; the others read theirs by the same functions."""

SAMPLED = (TEXT, "/v1/completions/render", CHAT, "/v1/chat/completions/render", BATCH, RESPONSES)
"""Those that take the fields of sampling by the names of OpenAI's completions."""

CONVERSATIONS = {CHAT: "messages[1]", MESSAGES: "messages[1]", RESPONSES: "input[1]", TOKENIZE: "messages[1]"}
"""Those that take messages, and what they call the second."""


def written(fields: Any) -> bytes:
    """A body; what JSON has no word for (NaN, a lone surrogate) is written as Python's does."""
    return json.dumps(fields).encode()


def merged(path: str, fields: dict[str, Any]) -> bytes:
    """The route's own body with these fields; None takes one away."""
    body = VALID[path] | fields
    return written({name: value for name, value in body.items() if value is not None})


def refused(
    row: str,
    path: str,
    fields: dict[str, Any],
    *reasons: str,
    param: str | None = None,
    any_param: bool = False,
    says: str = "",
) -> Case:
    """Fields that make a served body one to be refused; `param` is the first of them unless it is given."""
    named = param or next(iter(fields))
    told = reasons or ("invalid_value",)
    return Case(row, path, merged(path, fields), 400, told, named, any_param, says=says)


def on_each(paths: Iterable[str], row: str, fields: dict[str, Any], *reasons: str, **more: Any) -> Iterator[Case]:
    """The same fields on several routes."""
    return (refused(row, path, fields, *reasons, **more) for path in paths)


def raw(row: str, path: str, body: bytes, *reasons: str, param: str | None = None) -> Case:
    """Bytes that no JSON writer would make."""
    return Case(row, path, body, 400, reasons, param)


def served(row: str, path: str, fields: dict[str, Any], **headers: str) -> Case:
    """Fields that look odd and are fine."""
    return Case(row, path, merged(path, fields), 200, headers=headers)


def turn(path: str, message: dict[str, Any]) -> dict[str, Any]:
    """A second message on a route that takes conversations, and no prompt where either may come."""
    if path == RESPONSES:
        return {"input": [HI, message]}
    return {"messages": [HI, message], **({"prompt": None} if path == TOKENIZE else {})}

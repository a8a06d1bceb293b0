"""One line of a batch: what it asks for, and the line that answers it, both in OpenAI's form."""

import uuid
from typing import NamedTuple

import msgspec
import orjson

from vllm_obs.server.batch_call import Reply
from vllm_obs.server.batch_files import MAX_LINE_BYTES, Line
from vllm_obs.server.errors import ApiError, shown
from vllm_obs.server.request_id import new_id

BATCH_URLS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/score",
    "/score",
    "/v1/rerank",
    "/v2/rerank",
    "/rerank",
)
"""What a line may ask for, where the application has it."""

UNSENDABLE = ("stream", "background")
"""Fields whose reply is no single document."""


class BatchRequest(NamedTuple):
    """A line's request. `body` is its JSON as it stands in the line."""

    custom_id: str
    url: str
    body: bytes


class BadLineError(Exception):
    """A line that cannot be sent, with the reply it gets instead."""

    def __init__(self, custom_id: str | None, refusal: ApiError) -> None:
        super().__init__(refusal.message)
        self.custom_id = custom_id
        self.reply = Reply(refusal.status, new_id(), refusal.body())


class _Fields(msgspec.Struct):
    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class _Named(msgspec.Struct):
    custom_id: str | None = None


class _Sending(msgspec.Struct):
    stream: object = None
    background: object = None


def read_request(line: Line) -> BatchRequest:
    """What the line asks for. Raises BadLineError."""
    if not line.is_whole:
        message = f"line {line.number} is longer than the limit of {MAX_LINE_BYTES} bytes"
        raise BadLineError(None, ApiError(message, "too_large"))
    try:
        fields = msgspec.json.decode(line.content, type=_Fields)
    except msgspec.ValidationError as error:
        refusal = ApiError(f"line {line.number}: {error}", "invalid_body")
        raise BadLineError(_name_in(line), refusal) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadLineError(None, ApiError(f"line {line.number} is not JSON", "invalid_json")) from None
    if (refused := _refusal(line, fields)) is not None:
        raise BadLineError(fields.custom_id, refused)
    return BatchRequest(fields.custom_id, fields.url, bytes(fields.body))


def _refusal(line: Line, fields: _Fields) -> ApiError | None:
    if fields.method != "POST":
        return ApiError(
            f"line {line.number}: method {shown(fields.method)} is not POST", "invalid_value", param="method"
        )
    if fields.url not in BATCH_URLS:
        known = ", ".join(BATCH_URLS)
        return ApiError(
            f"line {line.number}: url {shown(fields.url)} is not one of {known}", "invalid_value", param="url"
        )
    for name in UNSENDABLE:
        if getattr(_sending(fields.body), name) is True:
            return ApiError(f"line {line.number}: {name} is not for batches", "unsupported", param=name)
    return None


def _sending(body: msgspec.Raw) -> _Sending:
    """How the reply is asked for; what is no such body at all is the application's to refuse."""
    try:
        return msgspec.json.decode(body, type=_Sending)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _Sending()


def _name_in(line: Line) -> str | None:
    try:
        return msgspec.json.decode(line.content, type=_Named).custom_id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def output_line(custom_id: str | None, reply: Reply) -> bytes:
    """The line that answers.

    `response` holds the reply as the server sends it; `error` is None for a status of 2xx, else the reply's error.
    """
    return orjson.dumps(
        {
            "id": f"batch_req_{uuid.uuid4().hex}",
            "custom_id": custom_id,
            "response": {
                "status_code": reply.status,
                "request_id": reply.request_id,
                "body": orjson.Fragment(reply.body),
            },
            "error": None if reply.is_ok else orjson.loads(reply.body)["error"],
        },
        option=orjson.OPT_APPEND_NEWLINE,
    )

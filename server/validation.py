"""From the bytes of a body to a checked request, with every fault named by its field."""

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from vllm_obs.engine.errors import Reason
from vllm_obs.engine.errors import shown as shown_value
from vllm_obs.server.errors import ApiError, shown
from vllm_obs.server.field_names import field_names
from vllm_obs.server.json_document import JsonObject, parse_object
from vllm_obs.server.unsupported import refuse_unsupported

MAX_LISTED_ERRORS = 10
THREAD_FROM_BYTES = 256 * 1024
"""Bodies from this size on are parsed in a thread: a megabyte of JSON takes milliseconds, and streams run on."""

OWN_REASONS: dict[str, Reason] = {
    "unsupported": "unsupported",
    "empty_prompt": "empty_prompt",
    "too_many_sequences": "too_many_sequences",
}
"""Error types raised by our own validators that are reasons themselves; all others are invalid_value."""
_BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "greater than"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
}
"""By the type of an error the key of its bound, and what is said of it."""
_OBJECT = re.compile(r"a valid dictionary or (?:object|instance of \w+)|a valid dictionary")

Model = TypeVar("Model", bound=BaseModel)


async def parse_request(kind: type[Model], body: bytes, max_depth: int) -> Model:
    """The request in `body`; ApiError 400 naming at most ten faults, with the first one's field as `param`."""
    return await _off_loop_if_large(_parse, kind, body, max_depth)


async def parse_either(kinds: dict[str, type[Model]], body: bytes, max_depth: int) -> Model:
    """The request in `body`, of the kind whose key it has; of the last kind when it has none of the keys."""
    return await _off_loop_if_large(_parse_either, kinds, body, max_depth)


async def _off_loop_if_large(parse: Callable[..., Model], kind: Any, body: bytes, max_depth: int) -> Model:
    if len(body) < THREAD_FROM_BYTES:
        return parse(kind, body, max_depth)
    return await asyncio.to_thread(parse, kind, body, max_depth)


def _parse(kind: type[Model], body: bytes, max_depth: int) -> Model:
    return _validate(kind, parse_object(body, max_depth))


def _parse_either(kinds: dict[str, type[Model]], body: bytes, max_depth: int) -> Model:
    document = parse_object(body, max_depth)
    *_, last = kinds.values()
    return _validate(next((kinds[key] for key in kinds if key in document.fields), last), document)


def _validate(kind: type[Model], document: JsonObject) -> Model:
    refuse_unsupported(document.fields, getattr(kind, "served_fields", frozenset()))
    try:
        request = kind.model_validate(document.fields)
    except ValidationError as error:
        raise _as_api_error(error, field_names(kind)) from None
    if document.defect:
        raise ApiError(f"the body is not valid JSON: {document.defect}", "invalid_json")
    return request


def _as_api_error(error: ValidationError, known: frozenset[str]) -> ApiError:
    """Names that the client chose are shown in the first line only: together they could be long."""
    details = error.errors(include_url=False)
    lines = [_line(_path(detail["loc"]), detail) for detail in details[:1]]
    for detail in details[1:MAX_LISTED_ERRORS]:
        location = [part if isinstance(part, int) or part in known else "…" for part in detail["loc"]]
        lines.append(_line(_path(location), detail))
    if len(details) > MAX_LISTED_ERRORS:
        lines.append(f"and {len(details) - MAX_LISTED_ERRORS} more")
    first = details[0]
    if len(details) == 1 and first["type"] in _BOUNDS:
        lines[0] += "."
    return ApiError("; ".join(lines), OWN_REASONS.get(first["type"], "invalid_value"), param=_param(first["loc"]))


def _line(path: str, detail: ErrorDetails) -> str:
    """What is wrong with a field; a number beyond its bound in the words that the engine has for it."""
    if (bound := _BOUNDS.get(detail["type"])) is not None:
        key, words = bound
        return f"{path} must be {words} {detail['ctx'][key]}, got {shown_value(detail['input'])}"
    return f"{path}: {_sentence(detail)}"


def _sentence(detail: ErrorDetails) -> str:
    """pydantic's message, in one line, without what it may repeat of the input and our classes' names."""
    told = _OBJECT.sub("an object", detail["msg"])
    return told.removeprefix("Input ").replace("\n", " ")[:200]


def _path(location: Sequence[int | str]) -> str:
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{_clean(part)}" if path else _clean(part)
    return path or "body"


def _param(location: tuple[int | str, ...]) -> str:
    """The field at fault: an entry of a plain list counts as its list."""
    return _path(location[:-1] if len(location) > 1 and isinstance(location[-1], int) else location)


def _clean(name: str) -> str:
    return name if (name.isidentifier() and len(name) <= 64) or name == "…" else shown(name)


def invalid(param: str, message: str, reason: Reason = "invalid_value") -> ApiError:
    """A 400 for one field."""
    return ApiError(f"{param}: {message}", reason, param=param)

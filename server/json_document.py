"""JSON bodies: strict parsing into a dictionary of bounded depth."""

import json
import math
from typing import Any, NamedTuple

import orjson

from vllm_obs.server.errors import ApiError

MAX_INT_DIGITS = 40
MAX_VALUES = 2_097_152
MAX_CONTAINERS = 262_144
"""Lists and objects: the collector of garbage goes through all of them again and again while nobody else runs."""
LENIENT_BYTES = 1024 * 1024
"""A larger body with a fault is not read again to name the field: that holds the interpreter's lock throughout."""


class JsonObject(NamedTuple):
    """A parsed body. `defect` says what strict JSON would refuse in it (NaN, 1e999, a huge integer), or is "".

    A defect is not raised at once, so that the schema can name the field the number stands in.
    """

    fields: dict[str, Any]
    defect: str = ""


def parse_object(body: bytes, max_depth: int) -> JsonObject:
    """The JSON object in `body`, or ApiError: invalid_json, invalid_body (no object), too_deep or too_large.

    The text must be UTF-8 without a byte order mark. A top-level null counts as a field left out.
    """
    if not body.strip():
        raise ApiError("the body is empty", "invalid_json")
    _check_num_values(body)
    value, defect = _parse(body, max_depth)
    if type(value) is not dict:
        raise ApiError(f"the body must be a JSON object, not {_kind(value)}", "invalid_body")
    _check_depth(value, max_depth)
    return JsonObject({name: field for name, field in value.items() if field is not None}, defect)


def _parse(body: bytes, max_depth: int) -> tuple[Any, str]:
    try:
        return orjson.loads(body), ""
    except orjson.JSONDecodeError as error:
        if "depth limit" in error.msg:
            raise _too_deep(max_depth) from None
        if len(body) > LENIENT_BYTES:
            raise _not_json(error) from None
        return _parse_leniently(body, max_depth, error), error.msg


def _parse_leniently(body: bytes, max_depth: int, refusal: orjson.JSONDecodeError) -> Any:
    """Parse again, taking every number: only a body that has no other fault comes back."""
    try:
        text = body.decode("utf-8")
        return json.loads(text, parse_int=_integer)
    except RecursionError:
        raise _too_deep(max_depth) from None
    except UnicodeDecodeError:
        raise ApiError("the body is not valid UTF-8", "invalid_json") from None
    except ValueError:
        raise _not_json(refusal) from None


def _not_json(refusal: orjson.JSONDecodeError) -> ApiError:
    where = f"line {refusal.lineno} column {refusal.colno}"
    return ApiError(f"the body is not valid JSON: {refusal.msg} ({where})", "invalid_json")


def _check_num_values(body: bytes) -> None:
    """Each value follows a comma or an opening bracket, and costs some twenty times its bytes once it is read.

    Those in texts count as well, which no text that fits a context has so many of.
    """
    if len(body) <= MAX_CONTAINERS:
        return
    num_containers = body.count(b"[") + body.count(b"{")
    if num_containers > MAX_CONTAINERS:
        raise ApiError(f"the body holds more than {MAX_CONTAINERS} lists and objects", "too_large")
    if num_containers + body.count(b",") > MAX_VALUES:
        raise ApiError(f"the body holds more than {MAX_VALUES} values", "too_large")


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= MAX_INT_DIGITS else math.inf


def parse_inner(text: str, max_depth: int) -> Any:
    """The JSON in a text of a body, which is held to the body's depth. ValueError for what is none, or deeper."""
    value = orjson.loads(text)
    try:
        _check_depth([value], max_depth + 1)
    except ApiError as error:
        raise ValueError(error.message) from None
    return value


def _check_depth(value: Any, max_depth: int) -> None:
    level = [value]
    for _ in range(max_depth):
        level = [
            child
            for parent in level
            for child in (parent.values() if type(parent) is dict else parent)
            if type(child) is dict or type(child) is list
        ]
        if not level:
            return
    raise _too_deep(max_depth)


def _too_deep(max_depth: int) -> ApiError:
    return ApiError(f"the body is nested deeper than {max_depth} levels", "too_deep")


def _kind(value: Any) -> str:
    return {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}.get(type(value), "a number")
